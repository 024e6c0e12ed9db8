//! Runs code that may panic, quietly, and keeps the message and place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `run` and turns a panic into its message and place, quietly.
pub(super) fn watch<T>(run: impl FnOnce() -> T) -> Result<T, (String, String)> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHED.get() {
                let place = info.location().map_or_else(String::new, ToString::to_string);
                PLACE.with_borrow_mut(|text| *text = place);
            } else {
                loud(info);
            }
        }));
    });
    WATCHED.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    WATCHED.set(false);
    outcome.map_err(|panic| (text_of(&*panic), PLACE.take()))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
