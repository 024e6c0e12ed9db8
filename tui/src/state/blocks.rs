//! The block map: the pool, folded into as many cells as the screen has. The host folds it, so the cost
//! depends on the screen and not on the pool. The counts in the legend come from the host and cover every
//! block.

use infer_api::admin::{BlockCounts, BlockInfo, BlockMap};

use super::Millis;

/// Time between two fetches of a small pool while the map is visible.
const REFRESH_MS: Millis = 500;
/// Pools larger than this many blocks are fetched half as often.
const LARGE: u32 = 16_384;
/// Fewest cells to request, so that a window that grows has something to show at once.
const MIN_CELLS: usize = 256;
/// Most cells to request.
const MAX_CELLS: usize = 32_768;

/// State of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the wire format")]
pub enum BlockState {
    Free,
    Cached,
    Kept,
    Used,
    Shared,
}

impl BlockState {
    /// All states, in the order of the legend.
    pub const ALL: [Self; 5] = [Self::Used, Self::Shared, Self::Cached, Self::Kept, Self::Free];

    /// Parses the letter on the wire; an unknown one counts as used.
    #[must_use]
    pub fn of(letter: char) -> Self {
        match letter {
            'f' => Self::Free,
            'c' => Self::Cached,
            'k' => Self::Kept,
            's' => Self::Shared,
            _ => Self::Used,
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Cached => "cached",
            Self::Kept => "kept",
            Self::Used => "used",
            Self::Shared => "shared",
        }
    }

    /// Returns how many blocks are in this state.
    #[must_use]
    pub fn count(self, counts: &BlockCounts) -> u32 {
        match self {
            Self::Free => counts.free,
            Self::Cached => counts.cached,
            Self::Kept => counts.kept,
            Self::Used => counts.used,
            Self::Shared => counts.shared,
        }
    }
}

/// What the colours of the map mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the query")]
pub enum ColourBy {
    #[default]
    State,
    Tenant,
    Age,
    References,
}

impl ColourBy {
    /// All meanings, in the order in which the key steps through them.
    pub const ALL: [Self; 4] = [Self::State, Self::Tenant, Self::Age, Self::References];

    /// Returns the name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Tenant => "tenant",
            Self::Age => "age",
            Self::References => "references",
        }
    }

    /// Returns the next meaning.
    #[must_use]
    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

/// Layout of the pool on the screen. The view and the cursor keys both compute it, from the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Cells of the host per cell of the screen; more than one only right after the window has shrunk.
    pub fold: usize,
    /// Blocks per cell of the screen; the last cell may have fewer.
    pub per_cell: usize,
    /// Drawn cells.
    pub cells: usize,
    /// Cells per row.
    pub columns: usize,
    /// Screen columns per cell: two if there is room, which is easier to read.
    pub cell_width: usize,
}

impl Grid {
    /// Fits a map into `width` x `height` characters.
    #[must_use]
    pub fn new(map: &BlockMap, (width, height): (u16, u16)) -> Self {
        let (width, height) = (usize::from(width).max(1), usize::from(height).max(1));
        let there = map.states.len();
        let cell_width = if there <= (width / 2) * height { 2 } else { 1 };
        let columns = (width / cell_width).max(1);
        let fold = there.div_ceil(columns * height).max(1);
        let per_cell = fold * map.per_cell.max(1) as usize;
        Self { fold, per_cell, cells: there.div_ceil(fold), columns, cell_width }
    }
}

/// What is known about the blocks under the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Under {
    /// One block.
    Block(BlockInfo),
    /// A group of blocks.
    Group(BlockMap),
}

/// A fetch for the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they ask")]
pub enum Wanted {
    Map { by: ColourBy, cells: usize },
    Block { id: u32 },
    Group { from: u32, count: u32 },
}

/// The screen's state.
#[derive(Clone, Debug, Default)]
pub struct BlocksPane {
    /// The map; `None` until it arrives.
    pub map: Option<BlockMap>,
    /// When it arrived.
    pub at: Millis,
    /// Why the last fetch failed.
    pub error: Option<String>,
    /// What the colours mean.
    pub by: ColourBy,
    /// The block under the cursor.
    pub cursor: u32,
    /// The last fetch for the cursor's block or group, with its result.
    pub under: Option<(Wanted, Result<Under, String>)>,
    /// Width and height of the map on the screen.
    pub room: (u16, u16),
    asked_at: Option<Millis>,
    waiting: bool,
    under_asked: Option<(Wanted, Millis)>,
    under_waiting: bool,
}

impl BlocksPane {
    /// Returns the fetches that are due and marks them as started.
    pub fn wants(&mut self, now: Millis) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let refresh = match &self.map {
            Some(map) if map.total > LARGE => 2 * REFRESH_MS,
            _ => REFRESH_MS,
        };
        let due = |at: Millis| now.saturating_sub(at) >= refresh;
        if !self.waiting && self.asked_at.is_none_or(due) {
            self.waiting = true;
            self.asked_at = Some(now);
            let room = usize::from(self.room.0) * usize::from(self.room.1);
            wanted.push(Wanted::Map { by: self.by, cells: room.clamp(MIN_CELLS, MAX_CELLS) });
        }
        if let Some(under) = self.wanted_under() {
            let fresh = self.under_asked.as_ref().is_some_and(|(asked, at)| *asked == under && !due(*at));
            if !self.under_waiting && !fresh {
                self.under_waiting = true;
                self.under_asked = Some((under.clone(), now));
                wanted.push(under);
            }
        }
        wanted
    }

    /// Makes the next fetch due at once, because something else is wanted.
    pub fn forget(&mut self) {
        self.asked_at = None;
    }

    /// Discards what is known: the host restarted.
    pub fn clear(&mut self) {
        self.map = None;
        self.error = None;
        self.under = None;
        self.forget();
    }

    fn wanted_under(&self) -> Option<Wanted> {
        let map = self.map.as_ref()?;
        let per_cell = Grid::new(map, self.room).per_cell as u32;
        if per_cell == 1 {
            return Some(Wanted::Block { id: self.cursor });
        }
        let from = self.cursor / per_cell * per_cell;
        Some(Wanted::Group { from, count: per_cell.min(map.total - from) })
    }

    /// Takes the response with the map.
    pub fn on_map(&mut self, result: Result<BlockMap, String>, now: Millis) {
        self.waiting = false;
        match result {
            Ok(map) => {
                self.cursor = self.cursor.min(map.total.saturating_sub(1));
                self.map = Some(map);
                self.at = now;
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Takes the response for the cursor.
    pub fn on_under(&mut self, of: Wanted, result: Result<Under, String>) {
        self.under_waiting = false;
        self.under = Some((of, result));
    }

    /// Returns what is under the cursor, if known.
    #[must_use]
    pub fn under(&self) -> Option<&Result<Under, String>> {
        let wanted = self.wanted_under()?;
        self.under.as_ref().filter(|(of, _)| *of == wanted).map(|(_, result)| result)
    }

    /// Moves the cursor by cells and by rows.
    pub fn move_cells(&mut self, cells: isize, rows: isize) {
        let Some(map) = &self.map else { return };
        let grid = Grid::new(map, self.room);
        let cells = rows.saturating_mul(grid.columns.cast_signed()).saturating_add(cells);
        let blocks = cells.saturating_mul(grid.per_cell.cast_signed());
        let last = map.total.saturating_sub(1) as usize;
        self.cursor = (self.cursor as usize).saturating_add_signed(blocks).min(last) as u32;
    }

    /// Moves the cursor to a cell of the screen, if there is one.
    pub fn point_at(&mut self, column: usize, row: usize) {
        let Some(map) = &self.map else { return };
        let grid = Grid::new(map, self.room);
        let cell = row * grid.columns + column / grid.cell_width;
        if column / grid.cell_width < grid.columns && cell < grid.cells {
            self.cursor = (cell * grid.per_cell) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(cells: usize, per_cell: u32) -> BlockMap {
        let total = cells as u32 * per_cell;
        BlockMap {
            total,
            per_cell,
            counts: BlockCounts { free: total, ..BlockCounts::default() },
            states: "f".repeat(cells),
            ..BlockMap::default()
        }
    }

    fn pane(cells: usize, per_cell: u32, room: (u16, u16)) -> BlocksPane {
        let mut pane = BlocksPane { room, ..BlocksPane::default() };
        pane.on_map(Ok(map(cells, per_cell)), 0);
        pane
    }

    #[test]
    fn every_cell_of_the_host_is_drawn_within_the_screen() {
        for cells in [0, 1, 7, 100, 1_024, 9_999] {
            for room in [(0, 0), (1, 1), (3, 1), (80, 20), (200, 50)] {
                let grid = Grid::new(&map(cells, 3), room);
                let area = usize::from(room.0.max(1)) * usize::from(room.1.max(1));
                assert!(
                    grid.cells * grid.cell_width <= area.max(grid.cell_width),
                    "{cells}, {room:?}: {grid:?}"
                );
                assert!(grid.cells * grid.fold >= cells, "{cells}, {room:?}: {grid:?}");
                assert_eq!(grid.per_cell, grid.fold * 3);
            }
        }
    }

    #[test]
    fn the_cursor_moves_by_cells_and_rows_and_stays_inside() {
        let mut pane = pane(100, 1, (20, 10));
        pane.move_cells(1, 2);
        assert_eq!(pane.cursor, 21);
        pane.room = (10, 5);
        pane.move_cells(0, 1);
        assert_eq!(pane.cursor, 41);
        pane.move_cells(isize::MIN, 0);
        assert_eq!(pane.cursor, 0);
        pane.move_cells(0, isize::MAX);
        assert_eq!(pane.cursor, 99);
        pane.on_map(Ok(map(5, 1)), 0);
        assert_eq!(pane.cursor, 4);
    }

    #[test]
    fn a_click_moves_the_cursor_only_on_the_map() {
        let mut pane = pane(1_000, 10, (50, 20));
        pane.point_at(7, 2);
        assert_eq!(pane.cursor, 1_070);
        pane.point_at(60, 2);
        assert_eq!(pane.cursor, 1_070);
    }

    #[test]
    fn fetches_do_not_overlap_and_large_pools_are_fetched_less_often() {
        let mut small = pane(100, 1, (40, 10));
        assert_eq!(
            small.wants(0),
            [Wanted::Map { by: ColourBy::State, cells: 400 }, Wanted::Block { id: 0 }]
        );
        assert_eq!(small.wants(9_000), [], "both are still in flight");
        small.on_under(Wanted::Block { id: 0 }, Err("no".into()));
        assert_eq!(small.wants(9_000), [Wanted::Block { id: 0 }]);
        assert!(small.under().is_some());
        small.move_cells(1, 0);
        assert!(small.under().is_none(), "that was another block");

        let mut large = pane(10_000, 10, (200, 50));
        large.cursor = 99_999;
        assert_eq!(large.wants(0)[1], Wanted::Group { from: 99_990, count: 10 });
        large.on_map(Ok(map(10_000, 10)), 0);
        assert_eq!(large.wants(600), []);
        assert_eq!(large.wants(1_000).len(), 1);
    }
}
