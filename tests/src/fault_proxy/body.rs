//! Bodies: passed on as they come, or whole.

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body as HttpBody, Frame};

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body of either side.
pub(super) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The most bytes that are held at once: the largest object that a client of scafo reads.
pub(super) const WHOLE_MAX: usize = 64 << 20;

pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn passing<B>(body: B) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// The first half of what was promised, and then an error, at which the connection is closed.
pub(super) fn torn(whole: &Bytes) -> Body {
    let half = whole.slice(..whole.len() / 2);
    let frames = stream::unfold(Some(half), |left| async move {
        let half = left?;
        if half.is_empty() {
            // Once round the scheduler, so that what came before has left.
            tokio::task::yield_now().await;
            return Some((Err(BoxError::from("torn on purpose")), None));
        }
        Some((Ok(Frame::data(half)), Some(Bytes::new())))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// All bytes of a body.
///
/// # Errors
/// Whatever cut it off, and more than [`WHOLE_MAX`] bytes.
pub(super) async fn whole(mut body: Body) -> Result<Bytes, BoxError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if bytes.len() + data.len() > WHOLE_MAX {
            return Err("more than the proxy holds at once".into());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}
