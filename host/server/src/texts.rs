//! Texts of requests to tokens, off the threads that serve connections and within bounds of time and memory.
//!
//! The tokenizer library needs up to some 260 bytes for each byte of a text, and ends only when it has seen all of it. So
//! the first pieces of a long text must show that it may fit, and those that do share a budget.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use infer_model::{ModelError, ModelErrorKind, Tokenizer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::Served;
use crate::data::beyond_context;
use crate::http::{ApiError, Room};

/// Shorter texts are tokenized on the spot: handing them to another thread would take longer.
const INLINE_BYTES: usize = 1_024;
/// Bytes of text that are encoded at once. A longer text is encoded alone.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Bytes of a text that are counted even if they don't fit in the context.
const COUNTED_BYTES: usize = 1 << 20;

/// Turns of work that may block.
pub struct Turns {
    threads: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// A text to be tokenized.
pub struct FieldText {
    /// The field that it came from, for errors.
    pub field: &'static str,
    /// The text.
    pub text: String,
    /// Whether to add the tokenizer's special tokens.
    pub special: bool,
    /// What its tokens are for.
    pub purpose: Purpose,
}

/// What tokens are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A prompt, which must fit in the context.
    Prompt,
    /// To be counted, for a request to this path.
    Count(&'static str),
}

impl Turns {
    /// Turns for as many threads.
    pub fn new(threads: usize) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.max(1)));
        Self { threads: semaphore(threads), bytes: semaphore(BYTES_AT_ONCE) }
    }

    /// Waits for the share of a text of so many bytes.
    async fn share(&self, bytes: usize) -> OwnedSemaphorePermit {
        let share = bytes.min(BYTES_AT_ONCE) as u32;
        Arc::clone(&self.bytes).acquire_many_owned(share).await.expect("the semaphore is never closed")
    }

    /// Runs `work` on a thread that may block, once one is free; `what` names it in errors. The permit moves into the work,
    /// which continues even if its client disconnects.
    async fn off_thread<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.threads).acquire_owned().await.expect("the semaphore is never closed");
        let work = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| failed(what))
    }
}

/// Runs `work` on this thread. A panic becomes the same error as on another thread.
fn on_the_spot<T>(what: &'static str, work: impl FnOnce() -> T) -> Result<T, ApiError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| failed(what))
}

fn failed(what: &'static str) -> ApiError {
    let message = format!("{what} failed within the host; its stderr has the message of the panic");
    ApiError::internal("internal", message).for_good()
}

/// What a client gets if its text can't be encoded or its tokens can't be decoded: 422 if the vocabulary can't express the
/// text, else 500. Either way the same request would fail again.
pub fn tokenizer_error(field: &str, error: ModelError) -> ApiError {
    match error.kind {
        ModelErrorKind::Text => ApiError::invalid(field, error.message),
        _ => ApiError::internal("tokenizer", error.message).within(field, field).for_good(),
    }
}

impl Served {
    /// Tokenizes a text from a request's body.
    pub async fn encode(&self, text: FieldText, room: Room) -> Result<Vec<u32>, ApiError> {
        let FieldText { field, text, special, purpose } = text;
        let limit = self.max_seq_len;
        let (text, room) = match purpose {
            Purpose::Count(_) if text.len() <= COUNTED_BYTES => (text, room),
            Purpose::Count(path) => {
                let bytes = text.len();
                self.unless_far_too_long((text, room), |(text, _)| vec![text]).await?.map_err(|_| {
                    let message = format!(
                        "a text of {bytes} bytes; {path} takes at most {COUNTED_BYTES} bytes, or what fits in the \
                         model's {limit} tokens"
                    );
                    ApiError::invalid(field, message).code("too_long")
                })?
            }
            Purpose::Prompt => self.fitting(field, (text, room), |(text, _)| vec![text]).await?,
        };
        let bytes = text.len();
        let encode = move |tokenizer: &Tokenizer| {
            let _room = room;
            tokenizer.encode(&text, special)
        };
        self.encoding(bytes, encode).await?.map_err(|e| tokenizer_error(field, e))
    }

    /// Fails if one of the `texts` in `of` has far more tokens than fit in the context; else returns `of`.
    pub async fn fitting<T: Send + 'static>(
        &self,
        field: &'static str,
        of: T,
        texts: fn(&T) -> Vec<&str>,
    ) -> Result<T, ApiError> {
        let limit = u64::from(self.max_seq_len);
        let too_long = |_| beyond_context(field, limit, format_args!("more than {limit}"));
        self.unless_far_too_long(of, texts).await?.map_err(too_long)
    }

    /// `of`, unless one of its `texts` has far more tokens than fit in the context: then the index of the first.
    pub async fn unless_far_too_long<T: Send + 'static>(
        &self,
        of: T,
        texts: fn(&T) -> Vec<&str>,
    ) -> Result<Result<T, usize>, ApiError> {
        let limit = self.max_seq_len as usize;
        let longest = texts(&of).into_iter().map(str::len).max().unwrap_or(0);
        // Most texts are too short to be asked about.
        if longest / 2 <= limit {
            return Ok(Ok(of));
        }
        let fits = move |tokenizer: &Tokenizer| {
            let far = texts(&of).into_iter().position(|text| tokenizer.far_exceeds(text, limit));
            far.map_or(Ok(of), Err)
        };
        self.with_tokenizer(longest, fits).await
    }

    /// Runs `work`, which encodes texts of `bytes` bytes together, as `with_tokenizer` does, once it has its share of what is
    /// encoded at once.
    pub async fn encoding<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Tokenizer) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let share = if bytes > INLINE_BYTES { Some(self.turns.share(bytes).await) } else { None };
        let work = move |tokenizer: &Tokenizer| {
            let _share = share;
            work(tokenizer)
        };
        self.with_tokenizer(bytes, work).await
    }

    /// Runs `work` on a text of `bytes` bytes: at once if the text is short, else on a thread that may block.
    pub async fn with_tokenizer<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Tokenizer) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        const WHAT: &str = "work with texts and tokens";
        if bytes <= INLINE_BYTES {
            return on_the_spot(WHAT, || work(&self.tokenizer));
        }
        let tokenizer = self.tokenizer.clone();
        self.off_thread(WHAT, move || work(&tokenizer)).await
    }

    /// Runs `work` on a thread that may block, of which at most `--threads` run at once; `what` names it in errors.
    pub async fn off_thread<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.turns.off_thread(what, work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> u32 {
        panic!("a test's own panic")
    }

    #[tokio::test]
    async fn panic_is_an_answer_that_says_what_failed_on_any_thread() {
        let turns = Turns::new(1);
        let here = on_the_spot("counting", broken).unwrap_err();
        let there = turns.off_thread("counting", broken).await.unwrap_err();
        for error in [here, there] {
            assert_eq!((error.status().as_u16(), error.reason()), (500, "internal"));
            assert!(error.message().starts_with("counting failed"), "{}", error.message());
        }
        assert_eq!(turns.off_thread("counting", || 7).await.unwrap(), 7, "the turn is free again");
    }
}
