//! Clients that show what is on the wire: one that reads HTTP/1.1 byte by byte, and one for HTTP/2. Each keeps one
//! connection as long as the server lets it.

use std::{net::SocketAddr, time::Duration};

use axum::http::{HeaderMap, Method, Request};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// After which a response does not come any more. Nothing waits for this long unless something is wrong.
const LONG: Duration = Duration::from_secs(20);

/// A response as it was on the wire, with its body as a client understands it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub status: u16,
    /// In their order, names in lower case.
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn values(&self, name: &str) -> Vec<&[u8]> {
        self.fields.iter().filter(|field| field.0 == name).map(|field| &*field.1).collect()
    }

    /// Whether one of the items in a field's lists is this, in any case.
    pub fn lists(&self, name: &str, item: &str) -> bool {
        let lines = self.values(name).into_iter();
        lines
            .flat_map(|line| line.split(|byte| *byte == b','))
            .any(|one| one.trim_ascii().eq_ignore_ascii_case(item.as_bytes()))
    }
}

pub enum Client {
    Http1(Http1),
    Http2(h2::client::SendRequest<bytes::Bytes>),
}

impl Client {
    pub async fn http1(address: SocketAddr) -> Self {
        Self::Http1(Http1::to(address).await)
    }

    pub async fn http2(address: SocketAddr) -> Self {
        let (client, connection) = h2::client::handshake(TcpStream::connect(address).await.unwrap()).await.unwrap();
        tokio::spawn(connection);
        Self::Http2(client)
    }

    /// Sends a request without a body, and reads its response.
    pub async fn ask(&mut self, method: Method, path: &str, fields: &[(&str, &str)]) -> Seen {
        let response = async {
            match self {
                Self::Http1(client) => client.ask(&method, path, fields).await,
                Self::Http2(client) => over_http2(client, method, path, fields).await,
            }
        };
        timeout(LONG, response).await.expect("a response that ends")
    }
}

pub struct Http1 {
    address: SocketAddr,
    stream: TcpStream,
    /// What was read and belongs to no response yet.
    read: Vec<u8>,
}

impl Http1 {
    async fn to(address: SocketAddr) -> Self {
        Self { address, stream: TcpStream::connect(address).await.unwrap(), read: Vec::new() }
    }

    async fn ask(&mut self, method: &Method, path: &str, fields: &[(&str, &str)]) -> Seen {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n{fields}content-length: 0\r\n\r\n");
        self.stream.write_all(head.as_bytes()).await.unwrap();
        let mut seen = self.head().await;
        seen.body = self.body(&seen).await;
        assert!(self.read.is_empty(), "{seen:?} is followed by {:?}", String::from_utf8_lossy(&self.read));
        if seen.lists("connection", "close") {
            assert!(!self.more().await, "the server has said that it closes the connection: {:?}", self.read);
            *self = Self::to(self.address).await;
        }
        seen
    }

    async fn head(&mut self) -> Seen {
        let line = self.line().await;
        let status =
            line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {:?}", String::from_utf8_lossy(&line)));
        let mut fields = Vec::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                return Seen { status, fields, body: Vec::new() };
            }
            let colon = line.iter().position(|byte| *byte == b':').expect("a field");
            let name = std::str::from_utf8(&line[..colon]).unwrap().to_ascii_lowercase();
            fields.push((name, line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]).to_vec()));
        }
    }

    /// As RFC 9112 section 6.3 has a client find its end.
    async fn body(&mut self, head: &Seen) -> Vec<u8> {
        let (coded, lengths) = (head.values("transfer-encoding"), head.values("content-length"));
        if matches!(head.status, 204 | 304) {
            assert!(coded.is_empty() && lengths.is_empty(), "{head:?}");
            return Vec::new();
        }
        if !coded.is_empty() {
            assert!(lengths.is_empty() && coded == [b"chunked"], "{head:?}");
            return self.chunks().await;
        }
        let [length] = lengths[..] else { panic!("the body has no end, or more than one: {head:?}") };
        self.exactly(std::str::from_utf8(length).unwrap().parse().unwrap()).await
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut whole = Vec::new();
        loop {
            let size = self.line().await;
            let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap(), 16).unwrap();
            whole.extend(self.exactly(size).await);
            assert_eq!(self.line().await, b"", "what ends a chunk");
            if size == 0 {
                return whole;
            }
        }
    }

    async fn line(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.read.windows(2).position(|two| two == b"\r\n") {
                let rest = self.read.split_off(end + 2);
                let mut line = std::mem::replace(&mut self.read, rest);
                line.truncate(end);
                return line;
            }
            assert!(self.more().await, "the connection has ended after {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.read.len() < length {
            assert!(self.more().await, "the connection has ended within a body of {length} bytes");
        }
        let rest = self.read.split_off(length);
        std::mem::replace(&mut self.read, rest)
    }

    /// Reads on, unless the server has closed the connection.
    async fn more(&mut self) -> bool {
        self.stream.read_buf(&mut self.read).await.unwrap() > 0
    }
}

async fn over_http2(
    client: &mut h2::client::SendRequest<bytes::Bytes>,
    method: Method,
    path: &str,
    fields: &[(&str, &str)],
) -> Seen {
    let mut request = Request::builder().method(method).uri(format!("http://test{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let (response, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
    let (head, mut stream) = response.await.unwrap().into_parts();
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        stream.flow_control().release_capacity(data.len()).unwrap();
        body.extend(data);
    }
    assert_eq!(stream.trailers().await.unwrap(), None::<HeaderMap>);
    let fields = head.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    Seen { status: head.status.as_u16(), fields, body }
}
