//! Reads the bodies of requests and responses, up to a limit.

use std::{
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
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, LengthLimitError};

/// The result of reading a body.
pub(super) enum Read {
    Whole(Whole),
    /// The body is larger than the limit. The part that was read is not lost.
    TooLarge(Begun),
    /// The body broke off, or the limit of an outer layer ended it.
    Broken(BoxError),
}

/// A body that was read to its end.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

/// Reads at most `limit` bytes, and the frame that exceeds the limit. A body that announces more is not read at all.
pub(super) async fn read(mut rest: Body, limit: usize) -> Read {
    let mut read = Beginning::default();
    let mut trailers = None;
    if rest.size_hint().lower() > limit as u64 {
        return Read::TooLarge(Begun { read: None, rest });
    }
    while let Some(frame) = rest.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                read.push(data);
                if read.len() > limit {
                    return Read::TooLarge(Begun { read: Some(read.into_bytes()), rest });
                }
            }
            Ok(Err(frame)) => trailers = frame.into_trailers().ok().or(trailers),
            Err(error) => return Read::Broken(error.into()),
        }
    }
    Read::Whole(Whole { bytes: read.into_bytes(), trailers })
}

/// Returns whether the limit of another layer ended a body.
pub(super) fn is_length_limit(error: &BoxError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The frames of a body. One frame is kept as it is; more are copied into one buffer, so that small frames cost no more than
/// their bytes.
#[derive(Default)]
struct Beginning {
    first: Bytes,
    joined: BytesMut,
}

impl Beginning {
    fn push(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        if self.joined.is_empty() {
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&data);
    }

    fn len(&self) -> usize {
        self.first.len().saturating_add(self.joined.len())
    }

    fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.freeze() }
    }
}

impl From<Whole> for Body {
    fn from(whole: Whole) -> Self {
        match whole.trailers {
            None => Self::from(whole.bytes),
            Some(trailers) => Self::new(Full::new(whole.bytes).with_trailers(std::future::ready(Some(Ok(trailers))))),
        }
    }
}

/// Makes the body of a response with this status. If the status allows no content, the body is missing and, unlike an empty
/// body, has no length that axum would announce (RFC 9110 section 8.6).
pub(super) fn for_status(status: StatusCode, bytes: Bytes) -> Body {
    match status {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => Body::new(Nothing),
        StatusCode::RESET_CONTENT => Body::empty(),
        _ => Body::from(bytes),
    }
}

/// A body that ends at once, and does not say how long it is.
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

/// A body that was read in part: it gives that part, and then the rest.
pub(super) struct Begun {
    read: Option<Bytes>,
    rest: Body,
}

impl HttpBody for Begun {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(data) = self.read.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        Pin::new(&mut self.rest).poll_frame(cx).map(|frame| frame.map(|result| result.map_err(Into::into)))
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.as_ref().map_or(0, |read| read.len() as u64);
        let rest = self.rest.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper() {
            whole.set_upper(upper.saturating_add(read));
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, task::Waker};

    use super::*;

    /// Gives these frames, one after another.
    struct Frames(VecDeque<&'static str>);

    impl HttpBody for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }

    fn body(frames: &[&'static str]) -> Body {
        Body::new(Frames(frames.iter().copied().collect()))
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }

    #[test]
    fn a_body_within_the_limit_is_read_whole_however_it_is_framed() {
        for frames in [&["hello"][..], &["", "he", "", "llo", ""], &["h", "e", "l", "l", "o"]] {
            match now(read(body(frames), 5)) {
                Read::Whole(whole) => assert_eq!(whole.bytes, "hello"),
                Read::TooLarge(_) | Read::Broken(_) => panic!("it fits"),
            }
        }
    }

    #[test]
    fn nothing_of_a_body_over_the_limit_is_lost() {
        let Read::TooLarge(begun) = now(read(body(&["he", "llo", "!"]), 4)) else { panic!("it does not fit") };
        assert_eq!(now(begun.collect()).map(http_body_util::Collected::to_bytes).ok(), Some(Bytes::from("hello!")));
    }
}
