//! What the host calls. A call is: `room` for the request, which the host writes there, then `load` or `render`,
//! whose answer stays where it is until the next call. Nothing here is unsafe but the names of exports.
#![allow(unsafe_code, reason = "a name that is exported as it stands is an unsafe attribute")]

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::{Mutex, Once, PoisonError};

use crate::renderer::Renderer;
use crate::wire::Reader;

/// Bytes for what a panic says.
const WORDS_BYTES: usize = 512;

#[derive(Default)]
struct Guest {
    request: Vec<u8>,
    answer: String,
    renderer: Option<Renderer>,
}

thread_local! {
    static GUEST: RefCell<Guest> = RefCell::default();
}

static LAST_WORDS: Mutex<[u8; WORDS_BYTES]> = Mutex::new([0; WORDS_BYTES]);

/// Room for a request of so many bytes. The last answer is gone then.
#[unsafe(no_mangle)]
extern "C" fn room(bytes: usize) -> *mut u8 {
    GUEST.with_borrow_mut(|guest| {
        guest.answer = String::new();
        guest.request = vec![0; bytes];
        guest.request.as_mut_ptr()
    })
}

/// Takes the template in the request: its text, then its special tokens.
#[unsafe(no_mangle)]
extern "C" fn load() -> u64 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(|panic| leave_words(panic))));
    GUEST.with_borrow_mut(|guest| {
        let request = std::mem::take(&mut guest.request);
        let mut reader = Reader::new(&request);
        let parts = reader.text().and_then(|template| Ok((template.to_owned(), reader.context()?)));
        let loaded = match parts {
            Ok((template, special)) => Renderer::new(template, special),
            Err(malformed) => Err(format!("{malformed:?}")),
        };
        let loaded = loaded.map(|renderer| guest.renderer = Some(renderer));
        guest.answer(loaded.map(|()| String::new()))
    })
}

/// Renders the context in the request.
#[unsafe(no_mangle)]
extern "C" fn render() -> u64 {
    GUEST.with_borrow_mut(|guest| {
        let request = std::mem::take(&mut guest.request);
        let context = Reader::new(&request).context();
        let request_bytes = request.len();
        drop(request);
        let rendered = match (&guest.renderer, context) {
            (Some(renderer), Ok(context)) => renderer.render(context, request_bytes),
            (None, _) => Err("there is no template".to_owned()),
            (_, Err(malformed)) => Err(format!("{malformed:?}")),
        };
        guest.answer(rendered)
    })
}

/// Where a panic leaves its message, zeros after it.
#[unsafe(no_mangle)]
extern "C" fn last_words() -> *const u8 {
    LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner).as_ptr()
}

impl Guest {
    /// Keeps the answer and says where it is: whether it is a refusal (1 bit), its address (31), its length (32).
    fn answer(&mut self, answer: Result<String, String>) -> u64 {
        let refused = answer.is_err();
        self.answer = answer.unwrap_or_else(|refusal| refusal);
        let (address, length) = (self.answer.as_ptr() as u64, self.answer.len() as u64);
        u64::from(refused) << 63 | address << 32 | length
    }
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
