//! The guest's side of a call from `infer-sandbox`.
//!
//! The host asks `room` for space, writes the request there and calls an entry point, which takes the request by
//! [`answer`]. The result is one number: whether it is a refusal (1 bit), the text's address (31) and length (32). The
//! text stays until the next `room`. Where a panic ends the call, its message stays at `last_words`, zeros after it.
//!
//! An entry point is a function like this:
//!
//! ```ignore
//! #[unsafe(no_mangle)]
//! extern "C" fn check() -> u64 {
//!     infer_sandbox_guest::answer(|request| compile(&request))
//! }
//! ```
#![deny(unsafe_code)]

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::{Mutex, Once, PoisonError};

/// Bytes kept of a panic's message.
const WORDS_BYTES: usize = 512;

thread_local! {
    static REQUEST: RefCell<Vec<u8>> = RefCell::default();
    static ANSWER: RefCell<String> = RefCell::default();
}

static LAST_WORDS: Mutex<[u8; WORDS_BYTES]> = Mutex::new([0; WORDS_BYTES]);

/// Has `work` make the answer to the request, and says where it is.
pub fn answer(work: impl FnOnce(Vec<u8>) -> Result<String, String>) -> u64 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(leave_words)));
    let answer = work(REQUEST.take());
    let refused = answer.is_err();
    let answer = answer.unwrap_or_else(|refusal| refusal);
    let (address, length) = (answer.as_ptr() as u64, answer.len() as u64);
    ANSWER.set(answer);
    u64::from(refused) << 63 | address << 32 | length
}

fn leave_words(panic: &std::panic::PanicHookInfo<'_>) {
    struct Words<'a>(&'a mut [u8]);
    impl std::fmt::Write for Words<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let fits = text.len().min(self.0.len());
            let (words, rest) = std::mem::take(&mut self.0).split_at_mut(fits);
            words.copy_from_slice(&text.as_bytes()[..fits]);
            self.0 = rest;
            Ok(())
        }
    }
    let mut words = LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    // It can't fail: what has no room is left out.
    let _ = write!(Words(&mut *words), "{panic}");
}

#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "a name that is exported as it stands is an unsafe attribute")]
mod exports {
    use super::{ANSWER, LAST_WORDS, PoisonError, REQUEST};

    /// Space for a request of `bytes`. The last answer is gone then.
    #[unsafe(no_mangle)]
    extern "C" fn room(bytes: usize) -> *mut u8 {
        ANSWER.set(String::new());
        REQUEST.with_borrow_mut(|request| {
            *request = vec![0; bytes];
            request.as_mut_ptr()
        })
    }

    /// Where a panic leaves its message.
    #[unsafe(no_mangle)]
    extern "C" fn last_words() -> *const u8 {
        LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner).as_ptr()
    }
}
