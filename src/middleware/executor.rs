//! `&mut Tx` as an executor of sqlx, and as a connection on which a savepoint can begin.

use std::{future::ready, pin::Pin};

use futures_core::Stream;
use sqlx::{
    Acquire, Database, Either, Error, Execute, Executor, PgConnection, Postgres, SqlStr, Transaction,
    postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};
use sqlx_core::describe::Describe;

use super::tx::Tx;
use crate::engine::probe;

type Promised<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;
type Streamed<'a, T> = Pin<Box<dyn Stream<Item = Result<T, Error>> + Send + 'a>>;

/// Works as for `&mut PgConnection`: `query.execute(&mut tx)`.
impl<'c> Executor<'c> for &'c mut Tx {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> Streamed<'e, Either<PgQueryResult, PgRow>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let connection: &'c mut PgConnection = self;
        Executor::fetch_many(connection, query)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> Promised<'e, Option<PgRow>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let connection: &'c mut PgConnection = self;
        Executor::fetch_optional(connection, query)
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> Promised<'e, PgStatement>
    where
        'c: 'e,
    {
        let connection: &'c mut PgConnection = self;
        connection.prepare_with(sql, parameters)
    }

    // The method exists only with sqlx's feature `offline`, which an application's `macros` enables; so it is always on
    // here.
    fn describe<'e>(self, sql: SqlStr) -> Promised<'e, Describe<Postgres>>
    where
        'c: 'e,
    {
        let connection: &'c mut PgConnection = self;
        connection.describe(sql)
    }
}

/// Lends the connection; `begin` does the same as [`Tx::begin`].
impl<'c> Acquire<'c> for &'c mut Tx {
    type Database = Postgres;
    type Connection = &'c mut <Postgres as Database>::Connection;

    fn acquire(self) -> Promised<'c, Self::Connection> {
        Box::pin(ready(Ok(&mut **self)))
    }

    fn begin(self) -> Promised<'c, Transaction<'c, Postgres>> {
        let connection: &'c mut PgConnection = self;
        Box::pin(async move {
            probe(&mut *connection).await?;
            sqlx::Connection::begin(connection).await
        })
    }
}
