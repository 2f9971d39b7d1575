//! The statements, each in a file of its own: they run in psql as they stand.
//!
//! No operator, function or type in them is looked up by the session's `search_path`: a role that may create one in `public`
//! could otherwise put its own in its place, and with it the guarantees.

/// The statement in a file, without the comment before it, which ends at the first empty line.
pub(super) const fn statement(file: &'static str) -> &'static str {
    let bytes = file.as_bytes();
    let (mut at, mut ends_a_line) = (0_usize, false);
    while at < bytes.len() {
        let is_end = bytes[at] == b'\n';
        at = at.saturating_add(1);
        if is_end && ends_a_line {
            return file.split_at(at).1;
        }
        ends_a_line = is_end;
    }
    file
}

/// The statement in `sql/NAME.sql`.
macro_rules! sql {
    ($name:literal) => {
        const { $crate::postgres::sql::statement(include_str!(concat!("sql/", $name, ".sql"))) }
    };
}

/// A statement that exists for each of the two tables of keys.
macro_rules! sql_of_both {
    ($name:literal) => {
        [
            const { $crate::postgres::sql::statement(include_str!(concat!("sql/keys/", $name, ".sql"))) },
            const { $crate::postgres::sql::statement(include_str!(concat!("sql/timed_keys/", $name, ".sql"))) },
        ]
    };
}

pub(super) use {sql, sql_of_both};
