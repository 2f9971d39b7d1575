//! Where messages of PostgreSQL's protocol begin and end.

/// The length of a typed message, head included, once so much of it is there that one can tell.
pub fn message(bytes: &[u8]) -> Option<usize> {
    Some(1 + length(bytes.get(1..5)?))
}

/// As [`message`], for what a client sends before the server knows it: it has no type.
pub fn first(bytes: &[u8]) -> Option<usize> {
    Some(length(bytes.get(..4)?))
}

/// Are these bytes whole messages and nothing else?
pub fn is_whole(mut bytes: &[u8], length: impl Fn(&[u8]) -> Option<usize>) -> bool {
    while !bytes.is_empty() {
        let Some(rest) = length(bytes).and_then(|length| bytes.get(length..)) else { return false };
        bytes = rest;
    }
    true
}

/// Does a first message begin a session? Otherwise it asks for encryption, and another first one follows, or it
/// cancels something.
pub fn is_startup(first: &[u8]) -> bool {
    first.get(4..8) == Some(&[0, 3, 0, 0])
}

fn length(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
}
