//! The block map: which blocks are free, cached, used, shared, folded into as many cells as the screen
//! has. The counts come from the very characters that are drawn, so the legend sums up by construction.

use infer_api::admin::Blocks;

use super::Millis;

/// Time between two fetches while the map is shown.
pub const REFRESH_MS: Millis = 500;

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the wire format")]
pub enum BlockState {
    Free,
    Cached,
    Used,
    Shared,
}

impl BlockState {
    /// All of them, in the order of the legend.
    pub const ALL: [Self; 4] = [Self::Used, Self::Shared, Self::Cached, Self::Free];

    /// From the wire's character; one that this console doesn't know counts as used, so that no block is
    /// lost from the sum.
    #[must_use]
    pub fn of(character: char) -> Self {
        match character {
            'f' => Self::Free,
            'c' => Self::Cached,
            's' => Self::Shared,
            _ => Self::Used,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Cached => "cached",
            Self::Used => "used",
            Self::Shared => "shared",
        }
    }
}

/// How many blocks are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Counts {
    pub free: usize,
    pub cached: usize,
    pub used: usize,
    pub shared: usize,
}

impl Counts {
    /// Counts states.
    #[must_use]
    pub fn of(states: impl IntoIterator<Item = BlockState>) -> Self {
        let mut counts = Self::default();
        for state in states {
            *match state {
                BlockState::Free => &mut counts.free,
                BlockState::Cached => &mut counts.cached,
                BlockState::Used => &mut counts.used,
                BlockState::Shared => &mut counts.shared,
            } += 1;
        }
        counts
    }

    /// Of one state.
    #[must_use]
    pub fn get(&self, state: BlockState) -> usize {
        match state {
            BlockState::Free => self.free,
            BlockState::Cached => self.cached,
            BlockState::Used => self.used,
            BlockState::Shared => self.shared,
        }
    }

    /// Of all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.free + self.cached + self.used + self.shared
    }

    /// The state that most of them are in; of equals the busier one.
    #[must_use]
    pub fn majority(&self) -> BlockState {
        [BlockState::Shared, BlockState::Used, BlockState::Cached, BlockState::Free]
            .into_iter()
            .rev()
            .max_by_key(|&state| self.get(state))
            .expect("four states")
    }
}

/// How the pool is laid out on the screen. View and cursor keys both compute it, from the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in a cell; the last cell may have fewer.
    pub per_cell: usize,
    /// Cells that are drawn.
    pub cells: usize,
    /// Cells in a row.
    pub columns: usize,
    /// Screen columns of a cell: two where there is room, which is easier on the eye.
    pub cell_width: usize,
}

impl Grid {
    /// Fits `blocks` into `width` x `height` screen cells.
    #[must_use]
    pub fn new(blocks: usize, (width, height): (u16, u16)) -> Self {
        let (width, height) = (usize::from(width).max(1), usize::from(height).max(1));
        let cell_width = if blocks <= (width / 2) * height { 2 } else { 1 };
        let columns = (width / cell_width).max(1);
        let per_cell = blocks.div_ceil(columns * height).max(1);
        Self { per_cell, cells: blocks.div_ceil(per_cell), columns, cell_width }
    }
}

/// The screen's state.
#[derive(Clone, Debug, Default)]
pub struct BlocksPane {
    /// The map, once it came.
    pub blocks: Option<Blocks>,
    /// State of each block of it.
    pub states: Vec<BlockState>,
    /// Why the last fetch failed.
    pub error: Option<String>,
    /// The block under the cursor.
    pub cursor: usize,
    /// Width and height that the map has on the screen.
    pub room: (u16, u16),
    asked_at: Option<Millis>,
    waiting: bool,
}

impl BlocksPane {
    /// Whether it is time to fetch; then the fetch counts as begun.
    pub fn wants_fetch(&mut self, now: Millis) -> bool {
        let due = self.asked_at.is_none_or(|at| now.saturating_sub(at) >= REFRESH_MS);
        if self.waiting || !due {
            return false;
        }
        self.waiting = true;
        self.asked_at = Some(now);
        true
    }

    /// Takes the host's answer.
    pub fn on_answer(&mut self, result: Result<Blocks, String>, _now: Millis) {
        self.waiting = false;
        match result {
            Ok(blocks) => {
                self.states = blocks.states.chars().map(BlockState::of).collect();
                self.cursor = self.cursor.min(self.states.len().saturating_sub(1));
                self.blocks = Some(blocks);
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Totals of the whole map.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::of(self.states.iter().copied())
    }

    /// Moves the cursor by cells and by rows.
    pub fn move_cells(&mut self, cells: isize, rows: isize) {
        let grid = Grid::new(self.states.len(), self.room);
        let cells = rows.saturating_mul(grid.columns.cast_signed()).saturating_add(cells);
        self.move_by(cells.saturating_mul(grid.per_cell.cast_signed()));
    }

    fn move_by(&mut self, blocks: isize) {
        self.cursor = self.cursor.saturating_add_signed(blocks).min(self.states.len().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pane(states: &str) -> BlocksPane {
        let mut pane = BlocksPane::default();
        pane.on_answer(Ok(Blocks { states: states.into(), ..Blocks::default() }), 0);
        pane
    }

    #[test]
    fn the_counts_sum_to_the_pool_whatever_the_host_sends() {
        let counts = pane("ffccuuus?").counts();
        assert_eq!(counts, Counts { free: 2, cached: 2, used: 4, shared: 1 });
        assert_eq!(counts.total(), 9);
    }

    #[test]
    fn every_block_has_a_cell_and_every_cell_fits() {
        for blocks in [0, 1, 7, 100, 1_024, 99_999] {
            for room in [(0, 0), (1, 1), (3, 1), (80, 20), (200, 50)] {
                let grid = Grid::new(blocks, room);
                let area = usize::from(room.0.max(1)) * usize::from(room.1.max(1));
                assert!(
                    grid.cells * grid.cell_width <= area.max(grid.cell_width),
                    "{blocks}, {room:?}: {grid:?}"
                );
                assert!(grid.cells * grid.per_cell >= blocks, "{blocks}, {room:?}: {grid:?}");
                assert!(grid.cells.saturating_sub(1) * grid.per_cell < blocks.max(1), "{grid:?}");
            }
        }
    }

    #[test]
    fn the_cursor_moves_by_what_a_row_shows() {
        let mut pane = pane(&"f".repeat(100));
        pane.room = (20, 10);
        pane.move_cells(1, 2);
        assert_eq!(pane.cursor, 21);
        pane.room = (10, 5);
        pane.move_cells(0, 1);
        assert_eq!(pane.cursor, 41);
        pane.move_cells(isize::MIN, 0);
        assert_eq!(pane.cursor, 0);
        pane.move_cells(0, isize::MAX);
        assert_eq!(pane.cursor, 99);
    }

    #[test]
    fn a_folded_cell_shows_its_majority_and_of_equals_the_busier() {
        let majority = |states: &str| Counts::of(states.chars().map(BlockState::of)).majority();
        assert_eq!(majority("ffu"), BlockState::Free);
        assert_eq!(majority("fu"), BlockState::Used);
        assert_eq!(majority("fcus"), BlockState::Shared);
    }

    #[test]
    fn one_fetch_at_a_time_and_the_cursor_stays_inside() {
        let mut pane = pane("ffff");
        assert!(pane.wants_fetch(0));
        assert!(!pane.wants_fetch(10_000));
        pane.move_by(99);
        assert_eq!(pane.cursor, 3);
        pane.on_answer(Ok(Blocks { states: "ff".into(), ..Blocks::default() }), 0);
        assert_eq!(pane.cursor, 1);
        assert!(pane.wants_fetch(10_000));
        pane.on_answer(Err("no".into()), 0);
        assert_eq!((pane.states.len(), pane.error.as_deref()), (2, Some("no")));
    }
}
