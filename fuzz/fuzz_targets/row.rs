//! Any columns in a row, which anybody may have written: an answer that survives a round trip, or an error.

#![no_main]

type Columns = (Option<i16>, Option<Vec<String>>, Option<Vec<Vec<u8>>>, Option<Vec<u8>>);

libfuzzer_sys::fuzz_target!(|columns: Columns| {
    let (status, names, values, body) = columns;
    axum_idempotency::fuzzing::row(status, names, values, body);
});
