//! A cheap client: a socket, a handwritten request, a scan of the frames for token ids.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Result of a request.
#[derive(Debug, Default)]
pub struct Stream {
    /// HTTP status.
    pub status: u16,
    /// Whether the response has `Retry-After`.
    pub retry_after: bool,
    /// Ids of its tokens, in order.
    pub tokens: Vec<u32>,
    /// Whether its last event was received.
    pub done: bool,
    /// Time to the first token.
    pub ttft: Duration,
}

/// Longest gap in a stream.
const SILENCE: Duration = Duration::from_secs(60);

/// The bytes of a completion request.
pub fn request(prompt: &[u32], max_tokens: u32) -> Vec<u8> {
    let body = format!(
        "{{\"model\":\"demo\",\"prompt\":{prompt:?},\"max_tokens\":{max_tokens},\"temperature\":0,\"ignore_eos\":true}}"
    );
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Sends a request on a new connection and reads the response to its end.
pub async fn complete(address: SocketAddr, request: &[u8]) -> std::io::Result<Stream> {
    let sent = Instant::now();
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    socket.write_all(request).await?;
    let mut stream = Stream::default();
    let mut buffer = Vec::with_capacity(4_096);
    loop {
        let read = tokio::time::timeout(SILENCE, socket.read_buf(&mut buffer)).await;
        let read =
            read.map_err(|_| std::io::Error::new(std::io::ErrorKind::TimedOut, "the stream is silent"))??;
        if stream.status == 0 && !take_head(&mut buffer, &mut stream) {
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        }
        let before = stream.tokens.len();
        take_frames(&mut buffer, &mut stream);
        if before == 0 && !stream.tokens.is_empty() {
            stream.ttft = sent.elapsed();
        }
        if read == 0 || stream.done {
            return Ok(stream);
        }
    }
}

fn take_head(buffer: &mut Vec<u8>, stream: &mut Stream) -> bool {
    let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    stream.status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(1);
    stream.retry_after = head.contains("\r\nretry-after: ");
    buffer.drain(..end + 4);
    true
}

/// Takes complete frames. Chunks end where frames end, so chunk sizes appear only between frames.
fn take_frames(buffer: &mut Vec<u8>, stream: &mut Stream) {
    const ID: &[u8] = b"\"token_id\":";
    let mut from = 0;
    while let Some(end) = buffer[from..].windows(2).position(|two| two == b"\n\n") {
        let frame = &buffer[from..from + end];
        if let Some(at) = frame.windows(ID.len()).position(|part| part == ID) {
            let digits = frame[at + ID.len()..].iter().take_while(|b| b.is_ascii_digit());
            stream.tokens.push(digits.fold(0, |n, b| n * 10 + u32::from(b - b'0')));
        } else if frame.windows(11).any(|part| part == b"event: done") {
            stream.done = true;
        }
        from += end + 2;
    }
    buffer.drain(..from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_across_read_boundaries() {
        let text = b"HTTP/1.1 200 OK\r\nRetry-After: 3\r\n\r\n2f\r\nevent: token\ndata: {\"token\":\"a\",\"token_id\":12}\n\n\r\n\
            5\r\nevent: token\ndata: {\"token\":\"b\",\"token_id\":7}\n\n\r\n9\r\nevent: done\ndata: {}\n\n\r\n0\r\n\r\n";
        for cut in [1, 3, 17, text.len()] {
            let (mut stream, mut buffer) = (Stream::default(), Vec::new());
            for piece in text.chunks(cut) {
                buffer.extend_from_slice(piece);
                if stream.status != 0 || take_head(&mut buffer, &mut stream) {
                    take_frames(&mut buffer, &mut stream);
                }
            }
            assert_eq!((stream.status, stream.retry_after, stream.done), (200, true, true));
            assert_eq!(stream.tokens, [12, 7], "cut at {cut}");
        }
    }
}
