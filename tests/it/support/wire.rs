//! The frames of PostgreSQL's protocol.

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

/// Does a first message begin a session?
pub fn is_startup(first: &[u8]) -> bool {
    first.get(4..8) == Some(&[0, 3, 0, 0])
}

/// Where in the body of a Parse or Query message the statement ends: Parse has a name before it, and numbers behind it.
pub fn text_end(message: &[u8]) -> usize {
    let zeros = message[5..].iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
    zeros.take(if message[0] == b'P' { 2 } else { 1 }).last().unwrap()
}

/// Is it an SSLRequest or a GSSENCRequest, after the answer to which comes another first message?
pub fn asks_for_encryption(first: &[u8]) -> bool {
    matches!(first.get(4..8), Some([4, 210, 22, 47 | 48]))
}

/// The names of a startup message's parameters.
pub fn parameters(startup: &[u8]) -> impl Iterator<Item = &[u8]> {
    startup.get(8..).unwrap_or_default().split(|byte| *byte == 0).step_by(2).take_while(|name| !name.is_empty())
}

/// A message that begins a session.
pub fn startup<'a>(parameters: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut body = vec![0, 3, 0, 0];
    for (name, value) in parameters {
        body.extend(format!("{name}\0{value}\0").bytes());
    }
    body.push(0);
    [&*head(&body), &body].concat()
}

pub fn typed(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind], &*head(body), body].concat()
}

fn head(body: &[u8]) -> Vec<u8> {
    u32::try_from(4 + body.len()).unwrap().to_be_bytes().to_vec()
}

fn length(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
}
