//! Shortens names of any length, so that they fit into a row of the primary key's index.

use std::{fmt::Write as _, sync::Arc};

use sha2::{Digest as _, Sha256};

const LIMIT: usize = 200;
const HASHED: &str = "sha256:";

/// Returns `name` itself if it is short and plain, and otherwise its SHA-256 in hexadecimal. Different names give different
/// results: a plain name that looks like a hash is hashed as well.
pub(crate) fn name(name: &str) -> Arc<str> {
    if name.len() <= LIMIT && !name.starts_with(HASHED) && !name.contains(char::is_control) {
        return name.into();
    }
    format!("{HASHED}{}", hex(&Sha256::digest(name))).into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len().saturating_mul(2)), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}
