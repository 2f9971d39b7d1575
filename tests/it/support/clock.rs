use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::{Executor as _, PgConnection, postgres::PgConnectOptions};

use super::{Database, proxy::rewriting_proxy};

/// What PostgreSQL's functions are called, as the crate calls them, and those of the test.
const FUNCTIONS: [(&str, &str); 3] = [
    ("pg_catalog.now()", "fake.now()"),
    ("pg_catalog.clock_timestamp()", "fake.clock_timestamp()"),
    ("pg_catalog.statement_timestamp()", "fake.statement_timestamp()"),
];

/// The database's clock, in a test's hand: on its connections, each statement that asks PostgreSQL for the time asks
/// functions of the test instead. As the real one, `now()` stands still within a transaction, and `clock_timestamp()`
/// does not.
pub struct Clock {
    connection: PgConnection,
    options: PgConnectOptions,
}

/// When a test's clock begins, in milliseconds since 1970.
pub const START: i64 = 1_800_000_000_000;

impl Clock {
    pub async fn of(database: &Database) -> Self {
        let mut connection = database.connection().await;
        connection
            .execute(
                "create schema fake;
                 create table fake.clock (at timestamptz not null);
                 insert into fake.clock values ('epoch');
                 create function fake.clock_timestamp() returns timestamptz language sql volatile
                   as 'select at from fake.clock';
                 create function fake.statement_timestamp() returns timestamptz language sql volatile
                   as 'select at from fake.clock';
                 create function fake.now() returns timestamptz language plpgsql volatile as $$
                 begin
                   if coalesce(current_setting('fake.now', true), '') = '' then
                     perform set_config('fake.now', (select at::text from fake.clock), true);
                   end if;
                   return current_setting('fake.now')::timestamptz;
                 end $$",
            )
            .await
            .unwrap();
        let options = rewriting_proxy(database.options(), &FUNCTIONS).await;
        let mut this = Self { connection, options };
        this.set(START).await;
        this
    }

    /// For connections that live by this clock.
    pub fn options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// In milliseconds since 1970.
    pub async fn set(&mut self, at: i64) {
        sqlx::query("update fake.clock set at = 'epoch'::timestamptz + $1 * interval '1 millisecond'")
            .bind(at)
            .execute(&mut self.connection)
            .await
            .unwrap();
    }
}

pub fn moment(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.try_into().unwrap())
}
