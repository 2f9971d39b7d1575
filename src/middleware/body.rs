//! The bounded read of a body, of requests and responses alike.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    BoxError,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode},
};
use bytes::BytesMut;
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt as _, Full};

/// What came of reading a body.
pub(super) enum Read<B> {
    Whole(Whole),
    /// It is larger than the limit. What was read of it is not lost.
    TooLarge(Begun<B>),
    Broken,
}

/// A body that was read to its end.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

/// Reads at most `limit` bytes, and the frame that goes beyond. A body that announces more is not read at all.
pub(super) async fn read<B>(body: B, limit: usize) -> Read<B>
where
    B: HttpBody<Data = Bytes>,
{
    let mut begun = Begun { frames: VecDeque::new(), rest: Box::pin(body) };
    if begun.rest.size_hint().lower() > limit as u64 {
        return Read::TooLarge(begun);
    }
    let mut left = limit;
    let mut trailers = None;
    while let Some(frame) = begun.rest.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                let length = data.len();
                begun.frames.push_back(data);
                match left.checked_sub(length) {
                    Some(rest) => left = rest,
                    None => return Read::TooLarge(begun),
                }
            }
            Ok(Err(frame)) => trailers = frame.into_trailers().ok().or(trailers),
            Err(_) => return Read::Broken,
        }
    }
    Read::Whole(Whole { bytes: joined(begun.frames), trailers })
}

/// One frame is handed on as it is; more are copied into one buffer.
fn joined(mut frames: VecDeque<Bytes>) -> Bytes {
    if frames.len() < 2 {
        return frames.pop_front().unwrap_or_default();
    }
    let mut bytes = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
    // Each is let go of as soon as it is copied.
    while let Some(frame) = frames.pop_front() {
        bytes.extend_from_slice(&frame);
    }
    bytes.freeze()
}

impl From<Whole> for Body {
    fn from(whole: Whole) -> Self {
        match whole.trailers {
            None => Self::from(whole.bytes),
            Some(trailers) => Self::new(Full::new(whole.bytes).with_trailers(std::future::ready(Some(Ok(trailers))))),
        }
    }
}

/// The body of an answer with this status: nothing at all where the status allows no content, and there, unlike an
/// empty body, without a length that axum would announce (RFC 9110 section 8.6).
pub(super) fn for_status(status: StatusCode, bytes: Bytes) -> Body {
    match status {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Body::new(Nothing),
        StatusCode::RESET_CONTENT => Body::empty(),
        _ => Body::from(bytes),
    }
}

/// Ends at once, and does not say how long it is.
struct Nothing;

impl HttpBody for Nothing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// A body of which a beginning was read: that, and then the rest.
pub(super) struct Begun<B> {
    frames: VecDeque<Bytes>,
    rest: Pin<Box<B>>,
}

impl<B> HttpBody for Begun<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(data) = self.frames.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        self.rest.as_mut().poll_frame(cx).map(|frame| frame.map(|result| result.map_err(Into::into)))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn body(frames: &[&'static str]) -> impl HttpBody<Data = Bytes, Error = Infallible> + use<> {
        let frames: Vec<_> = frames.iter().map(|text| Bytes::from_static(text.as_bytes())).collect();
        Begun { frames: frames.into(), rest: Box::pin(Full::new(Bytes::new())) }.map_err(|_| unreachable_error())
    }

    fn unreachable_error() -> Infallible {
        panic!("it does not fail")
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }

    #[test]
    fn a_body_within_the_limit_is_read_whole_however_it_is_framed() {
        for frames in [&["hello"][..], &["he", "", "llo"], &["h", "e", "l", "l", "o"]] {
            match now(read(body(frames), 5)) {
                Read::Whole(whole) => assert_eq!(whole.bytes, "hello"),
                Read::TooLarge(_) | Read::Broken => panic!("it fits"),
            }
        }
    }

    #[test]
    fn nothing_of_a_body_over_the_limit_is_lost() {
        let Read::TooLarge(begun) = now(read(body(&["he", "llo", "!"]), 4)) else { panic!("it does not fit") };
        assert_eq!(now(begun.collect()).map(http_body_util::Collected::to_bytes).ok(), Some(Bytes::from("hello!")));
    }
}
