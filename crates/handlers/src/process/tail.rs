//! The end of what a program wrote: the last bytes of a stream that may be endless, binary, or never close.

use std::collections::VecDeque;

use tokio::io::{AsyncRead, AsyncReadExt};

/// So much of each stream is kept.
pub(super) const TAIL_BYTES: usize = 4 * 1024;

/// The last [`TAIL_BYTES`] of a stream.
#[derive(Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    cut: bool,
}

impl Tail {
    /// Reads until the stream ends. What was read is kept when this is dropped before.
    pub(super) async fn fill(&mut self, stream: Option<impl AsyncRead + Unpin>) {
        let Some(mut stream) = stream else { return };
        let mut chunk = vec![0; 16 * 1024];
        // A stream that breaks has ended; what the program is worth is told by its exit code.
        while let Ok(count @ 1..) = stream.read(&mut chunk).await {
            self.push(&chunk[..count]);
        }
    }

    fn push(&mut self, chunk: &[u8]) {
        let newest = &chunk[chunk.len().saturating_sub(TAIL_BYTES)..];
        let surplus = (self.bytes.len() + newest.len()).saturating_sub(TAIL_BYTES);
        self.cut |= surplus > 0 || newest.len() < chunk.len();
        self.bytes.drain(..surplus);
        self.bytes.extend(newest);
    }

    /// The end as text, without the white space around it.
    pub(super) fn text(mut self) -> String {
        let cut = self.cut;
        let bytes = self.bytes.make_contiguous();
        // Where the beginning is missing, the first character may be half a one.
        let start = if cut { bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count() } else { 0 };
        let text = String::from_utf8_lossy(&bytes[start..]);
        let text = text.trim();
        if cut { last(&format!("…{text}"), TAIL_BYTES) } else { last(text, TAIL_BYTES) }
    }
}

/// At most the last `max` bytes, marked and on a character boundary when something is left out.
pub(super) fn last(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut start = text.len() - max.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(start) {
        start += 1;
    }
    format!("…{}", &text[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tail(bytes: &[u8]) -> String {
        let mut tail = Tail::default();
        tail.fill(Some(bytes)).await;
        tail.text()
    }

    #[tokio::test]
    async fn only_the_end_is_kept() {
        assert_eq!(tail(b" short \n").await, "short");
        let mut long = vec![b'x'; 50_000];
        long.extend_from_slice(b"the end");
        let text = tail(&long).await;
        assert!(text.len() <= TAIL_BYTES && text.starts_with("…x") && text.ends_with("the end"), "{text}");
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_grow_no_further_than_the_limit() {
        assert_eq!(tail(b"a\xff\xfeb").await, "a\u{fffd}\u{fffd}b");
        let text = tail(&vec![0xff; 100_000]).await;
        assert!(text.len() <= TAIL_BYTES && text.ends_with('\u{fffd}'));
        let text = tail("界".repeat(5_000).as_bytes()).await;
        assert!(text.len() <= TAIL_BYTES && !text.contains('\u{fffd}') && text.ends_with('界'));
    }
}
