//! Splits a stream of server-sent events: bytes in, names and data out. The load generator and the console read their
//! streams with it.
//!
//! An event ends with an empty line. Lines end with a line feed, or with a carriage return and a line feed. Comments
//! and fields other than `event` and `data` are ignored. Events are bounded, so a peer that never ends one causes an
//! error instead of exhausting memory.

/// Size limit of an event where the reader sets no other.
const MAX_EVENT_BYTES: usize = 1 << 20;
/// Size of the buffer to which it shrinks after larger events.
const KEPT_BYTES: usize = 64 << 10;
/// What ends an event.
const SEPARATORS: [&[u8]; 2] = [b"\n\n", b"\n\r\n"];

/// Splits bytes into events, independent of how they were split into chunks.
#[derive(Debug)]
pub struct Events {
    /// Most bytes of an event, with the empty line that ends it.
    most: usize,
    buffer: Vec<u8>,
    /// No separator begins before this place in the buffer.
    searched: usize,
}

impl Default for Events {
    /// Events of up to 1 MiB.
    fn default() -> Self {
        Self::up_to(MAX_EVENT_BYTES)
    }
}

impl Events {
    /// Events of up to `most` bytes, with the empty line that ends them.
    #[must_use]
    pub fn up_to(most: usize) -> Self {
        Self { most, buffer: Vec::new(), searched: 0 }
    }

    /// Appends a chunk, after all events of earlier ones were taken. The buffer never exceeds the size limit by more
    /// than a chunk.
    ///
    /// # Errors
    /// If an event exceeds the size limit.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), String> {
        let mut fits = self.buffer.len() <= self.most;
        if fits {
            self.buffer.extend_from_slice(chunk);
            fits = self.buffer.len() <= self.most || largest(&self.buffer) <= self.most;
        }
        if fits { Ok(()) } else { Err(format!("an event is larger than {} bytes", self.most)) }
    }

    /// The next complete event, as name and data. Both are empty if the event has no such field, as in a comment that
    /// keeps a connection open.
    #[expect(clippy::should_implement_trait, reason = "more may come after `None`")]
    pub fn next(&mut self) -> Option<(String, String)> {
        let Some((end, separator)) = event_end(&self.buffer, self.searched) else {
            // The last two bytes may begin a separator.
            self.searched = self.buffer.len().saturating_sub(2);
            return None;
        };
        let event = fields(&String::from_utf8_lossy(&self.buffer[..end]));
        self.buffer.drain(..end + separator);
        self.searched = 0;
        if self.buffer.is_empty() {
            self.buffer.shrink_to(KEPT_BYTES);
        }
        Some(event)
    }
}

/// End of the first event that ends at `from` or later, and length of the separator after it.
fn event_end(buffer: &[u8], from: usize) -> Option<(usize, usize)> {
    (from..buffer.len()).find_map(|at| {
        let separator = SEPARATORS.into_iter().find(|separator| buffer[at..].starts_with(separator))?;
        Some((at, separator.len()))
    })
}

/// Size of the largest event with its separator. The last one may be incomplete.
fn largest(buffer: &[u8]) -> usize {
    let (mut start, mut largest) = (0, 0);
    while let Some((end, separator)) = event_end(buffer, start) {
        largest = largest.max(end + separator - start);
        start = end + separator;
    }
    largest.max(buffer.len() - start)
}

/// Name and data of an event; several lines of data are joined by line feeds.
fn fields(event: &str) -> (String, String) {
    let (mut name, mut data) = (String::new(), None::<String>);
    for line in event.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut name),
            "data" => match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            },
            _ => {}
        }
    }
    (name, data.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], chunk: usize) -> Vec<(String, String)> {
        let mut events = Events::default();
        let mut all = Vec::new();
        for bytes in text.chunks(chunk) {
            events.push(bytes).unwrap();
            while let Some(event) = events.next() {
                all.push(event);
            }
        }
        all
    }

    #[test]
    fn events_are_whole_however_the_stream_is_chunked() {
        let text = b": hello\r\n\r\nevent: swap\r\ndata: {\"a\":\ndata: 1}\n\nid: 3\ndata:x\n\n\
                     event:end\r\ndata\r\ndata: \xff\r\n\r\ndata: a\n\r\ndata: b\n\ndata: [DONE]\r\n\n\
                     data: cut\n";
        let want = [
            ("", ""),
            ("swap", "{\"a\":\n1}"),
            ("", "x"),
            ("end", "\n\u{fffd}"),
            ("", "a"),
            ("", "b"),
            ("", "[DONE]"),
        ];
        let want = want.map(|(name, data)| (name.to_owned(), data.to_owned()));
        for chunk in 1..=text.len() {
            assert_eq!(all(text, chunk), want, "in chunks of {chunk}");
        }
    }

    #[test]
    fn an_endless_event_is_an_error() {
        for (mut events, most) in [(Events::default(), 1 << 20), (Events::up_to(99), 99)] {
            events.push(&vec![b'x'; most]).unwrap();
            assert_eq!(events.next(), None);
            assert_eq!(events.push(b"x"), Err(format!("an event is larger than {most} bytes")));
        }
    }

    #[test]
    fn what_follows_an_event_in_its_chunk_does_not_count() {
        let too_large = Err("an event is larger than 99 bytes".to_owned());
        let follows = |text: &[u8]| {
            let mut events = Events::up_to(99);
            events.push(&[b'x'; 97]).unwrap();
            (events.push(text), events)
        };
        let (pushed, mut events) = follows(&[&b"\n\n"[..], &[b'y'; 99]].concat());
        assert_eq!(pushed, Ok(()));
        assert!(events.next().is_some() && events.next().is_none());
        assert_eq!(events.push(b"\n\n"), too_large);
        let (kept, more) = (events.buffer.len(), events.push(b"y"));
        assert_eq!((more, events.buffer.len()), (too_large.clone(), kept), "nothing is added after an error");
        for text in [&b"x\n\n"[..], &[&b"\n\n"[..], &[b'y'; 98], b"\n\n"].concat()] {
            assert_eq!(follows(text).0, too_large, "{text:?}");
        }
    }

    #[test]
    fn the_limit_is_for_one_event_and_a_large_one_leaves_no_large_buffer() {
        let mut events = Events::default();
        let large = format!("data: {}\n\n", "x".repeat(900_000));
        for _ in 0..3 {
            events.push(large.as_bytes()).unwrap();
            assert_eq!(events.next().map(|(_, data)| data.len()), Some(900_000));
            assert_eq!(events.next(), None);
            assert!(events.buffer.capacity() < 900_000, "{}", events.buffer.capacity());
        }
    }
}
