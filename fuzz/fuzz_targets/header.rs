//! Any octets in the header field: a key that keeps its promises, or a refusal.

#![no_main]

libfuzzer_sys::fuzz_target!(|value: &[u8]| axum_idempotency::fuzzing::header(value));
