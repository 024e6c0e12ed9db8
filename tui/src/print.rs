//! Renders screens as plain text, without a terminal: for READMEs, tickets and tests.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::args::Args;
use crate::once;
use crate::record::Player;
use crate::run::RunError;
use crate::state::{App, Millis};
use crate::view;
use crate::view::format::columns;

/// Returns the screen as text, without trailing spaces.
#[must_use]
pub fn screen(app: &App, now: Millis, area: Rect) -> String {
    let mut buffer = Buffer::empty(area);
    view::draw(app, now, area, &mut buffer);
    text(&buffer)
}

/// Returns the buffer's symbols, line by line.
#[must_use]
pub fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let row = |y| {
        let mut row = String::new();
        let mut x = area.left();
        while x < area.right() {
            let symbol = buffer[(x, y)].symbol();
            row.push_str(symbol);
            // A wide character also covers the cells after it.
            x += (columns(symbol) as u16).max(1);
        }
        format!("{}\n", row.trim_end())
    };
    (area.top()..area.bottom()).map(row).collect()
}

/// Returns a screen of a recording, at its end or at `--after`.
///
/// # Errors
/// [`RunError::Record`] if the recording can't be played, [`RunError::Nothing`] if it has no snapshot by
/// then.
pub fn recording(args: &Args, mut player: Player) -> Result<String, RunError> {
    let mut app = App::new(player.address().to_owned(), true);
    app.settings = args.settings();
    let area = Rect::new(0, 0, args.size.0, args.size.1);
    app.fit(view::room(&app, 0, area));
    let end = args.after.map_or(Millis::MAX, |seconds| seconds.saturating_mul(1_000));
    let mut now = 0;
    while let Some((at, message)) = player.read()? {
        if at > end {
            break;
        }
        now = at;
        app.on_message(message, now);
    }
    if args.once {
        let state = app.state().ok_or(RunError::Nothing)?;
        return Ok(once::text(state, &app.address));
    }
    for &key in &args.keys.0 {
        app.on_key(key, now);
        app.fit(view::room(&app, now, area));
    }
    if app.state().is_none() {
        return Err(RunError::Nothing);
    }
    Ok(screen(&app, now, area))
}
