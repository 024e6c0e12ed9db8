//! Runs the blocks of a launch one after another, and within a block the threads in an order drawn from the seed.

use crate::group::Products;
use crate::memory::{Memory, Refused};
use crate::program::{Kernel, Module, Op, Special};
use crate::race::{Kind, Moment, Races, Who};
use crate::thread::{State, Thread};
use crate::warp::{LANES, Lanes};
use crate::{Error, Global};

/// Content of shared memory before a block writes it: NaN as any type.
const POISON: u8 = 0xff;

/// What is launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Its name.
    pub kernel: &'a str,
    /// Number of blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// Bytes of shared memory per block.
    pub shared_bytes: usize,
    /// The kernel's parameter struct.
    pub params: &'a [u8],
    /// Order of blocks and threads.
    pub seed: u64,
}

/// What runs launches; reusing one saves allocations.
#[derive(Default)]
pub struct Machine {
    threads: Vec<Thread>,
    slots: Vec<u64>,
    shared: Vec<u8>,
    races: Races,
    /// Barriers of blocks so far, and of each warp of a block.
    block_barriers: u32,
    warp_barriers: Vec<u32>,
    /// Of each warp of a block.
    products: Vec<Products>,
    ready: Vec<u32>,
    arrived: Vec<usize>,
    unordered: bool,
}

/// What is wrong with a block: which thread, if it is one, and what it did.
struct Fault {
    thread: Option<usize>,
    said: String,
}

impl Machine {
    /// Doesn't check the order of accesses to shared memory from now on, which takes about a fifth of the time.
    pub fn ignore_races(&mut self) {
        self.unordered = true;
    }

    /// Runs a kernel.
    ///
    /// # Errors
    /// If the launch doesn't fit the kernel, or for the first thing that a thread does wrong.
    pub fn run(
        &mut self,
        module: &Module,
        launch: &Launch<'_>,
        global: &mut dyn Global,
    ) -> Result<(), Error> {
        let Launch { kernel: name, grid, threads, shared_bytes, params, seed } = *launch;
        let kernel = module.kernels.get(name).ok_or_else(|| Error::new(format!("no kernel `{name}`")))?;
        fits(kernel, launch)?;
        let early = module.target >= 90;
        let threads = threads as usize;
        self.threads.resize_with(threads, Thread::default);
        self.slots.resize(threads * kernel.slots.len(), 0);
        self.warp_barriers.resize(32, 0);
        self.arrived.resize(32, 0);
        self.products.resize_with(32, Products::default);
        self.races.prepare(shared_bytes, if kernel.small_shared { 1 } else { 4 });
        self.shared.resize(shared_bytes, POISON);
        let Self { races, shared, unordered, .. } = self;
        let (mut races, mut shared) = (std::mem::take(races), std::mem::take(shared));
        let order = (!*unordered).then_some(&mut races);
        let mut memory = Memory::new(global, &mut shared, params, order);
        let mut random = Random(seed);
        let blocks = grid.iter().map(|count| u64::from(*count)).product::<u64>();
        // Blocks are independent, so any order is valid: the seed chooses the end to start from.
        let result = (0..blocks).try_for_each(|index| {
            let at = if seed & 1 == 1 { blocks - 1 - index } else { index };
            let [x, y] = [grid[0], grid[1]].map(u64::from);
            let block = [(at % x) as u32, (at / x % y) as u32, (at / x / y) as u32];
            self.prepare(kernel, grid, block, threads, early);
            memory.shared.fill(POISON);
            if !kernel.group_products.is_empty() {
                memory.check_published();
            }
            memory.block = at as u32;
            self.block(kernel, &mut memory, &mut random).map_err(|fault| {
                let place = fault.thread.map(|thread| {
                    let line = kernel.place(self.threads[thread].at);
                    format!(", thread {thread}, {line}")
                });
                let place = place.unwrap_or_default();
                Error::new(format!("{name}, block {block:?}{place} (order {seed}): {}", fault.said))
            })
        });
        (self.races, self.shared) = (races, shared);
        result
    }

    /// Sets all threads to the start.
    fn prepare(&mut self, kernel: &Kernel, grid: [u32; 3], block: [u32; 3], threads: usize, early: bool) {
        self.block_barriers += 1;
        self.arrived.fill(0);
        self.products.iter_mut().for_each(Products::clear);
        self.ready.clear();
        self.ready.extend(0..threads as u32);
        for (index, slots) in self.slots.chunks_exact_mut(kernel.slots.len()).enumerate() {
            slots.copy_from_slice(&kernel.slots);
            for (special, slot) in &kernel.specials {
                slots[usize::from(*slot)] = u64::from(match special {
                    Special::Thread(dimension) => [index as u32, 0, 0][*dimension],
                    Special::Threads(dimension) => [threads as u32, 1, 1][*dimension],
                    Special::Block(dimension) => block[*dimension],
                    Special::Blocks(dimension) => grid[*dimension],
                });
            }
        }
        for thread in &mut self.threads {
            (thread.at, thread.state, thread.waited) = (0, State::Ready, !early);
            thread.copies.clear();
        }
    }

    fn block(&mut self, kernel: &Kernel, memory: &mut Memory<'_>, random: &mut Random) -> Result<(), Fault> {
        let mut at_block = 0;
        while !self.ready.is_empty() {
            let pick = random.below(self.ready.len());
            let index = self.ready.swap_remove(pick) as usize;
            let warp = index / LANES;
            let now = Moment { block: self.block_barriers, warp: self.warp_barriers[warp] };
            let stride = kernel.slots.len();
            let slots = &mut self.slots[index * stride..][..stride];
            let state = self.threads[index].run(kernel, slots, memory, index as u32, now);
            let state = state.map_err(|refused| said(kernel, index, refused))?;
            self.threads[index].state = state;
            match state {
                State::AtWarp => self.meet_warp(kernel, memory, warp, index)?,
                State::AtBlock => {
                    at_block += 1;
                    if at_block == self.threads.len() {
                        at_block = 0;
                        self.meet_block(kernel)?;
                    }
                }
                State::Ready | State::Ended => {}
            }
        }
        self.all_ended(kernel)
    }

    /// A lane has arrived; the last one lets the warp go on.
    fn meet_warp(
        &mut self,
        kernel: &Kernel,
        memory: &mut Memory<'_>,
        warp: usize,
        index: usize,
    ) -> Result<(), Fault> {
        self.arrived[warp] += 1;
        let first = warp * LANES;
        if self.arrived[warp] < LANES {
            return Ok(());
        }
        self.arrived[warp] = 0;
        let at = self.threads[index].at;
        self.same_place(kernel, first, at)?;
        let stride = kernel.slots.len();
        let slots = &mut self.slots[first * stride..][..LANES * stride];
        let instruction = &kernel.instructions[at];
        let mut lanes = Lanes { slots, stride };
        let now = Moment { block: self.block_barriers, warp: self.warp_barriers[warp] };
        let who = Who { thread: first as u32, instruction: at as u32, now };
        let products = &mut self.products[warp];
        let done = match instruction.op {
            Op::MultiplyGroup => {
                products.start(kernel, instruction.offset as usize, &mut lanes, memory, &who)
            }
            Op::WaitProducts => products.wait(kernel, instruction.offset as u32, &mut lanes, memory, &who),
            Op::CommitProducts => {
                products.commit();
                Ok(())
            }
            _ => lanes.execute(kernel, instruction).map_err(Refused::from),
        };
        done.map_err(|refused| said(kernel, index, refused))?;
        if matches!(instruction.op, Op::WarpBarrier) {
            self.warp_barriers[warp] += 1;
        }
        for lane in first..first + LANES {
            self.go_on(lane);
        }
        Ok(())
    }

    fn meet_block(&mut self, kernel: &Kernel) -> Result<(), Fault> {
        for first in (0..self.threads.len()).step_by(LANES) {
            self.same_place(kernel, first, self.threads[first].at)?;
        }
        self.same_products()?;
        self.block_barriers += 1;
        for index in 0..self.threads.len() {
            self.go_on(index);
        }
        Ok(())
    }

    fn go_on(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        (thread.state, thread.at) = (State::Ready, thread.at + 1);
        self.ready.push(index as u32);
    }

    /// All lanes of a warp must be at the same instruction.
    fn same_place(&self, kernel: &Kernel, first: usize, at: usize) -> Result<(), Fault> {
        match (first..first + LANES).find(|lane| self.threads[*lane].at != at) {
            None => Ok(()),
            Some(lane) => Err(Fault {
                thread: Some(lane),
                said: format!("other lanes of the warp are at {}", kernel.place(at)),
            }),
        }
    }

    /// The four warps of a group issue their products together.
    fn same_products(&self) -> Result<(), Fault> {
        let differ = |group: &[Products]| group.iter().any(|warp| warp.issued != group[0].issued);
        match self.products.chunks(4).position(differ) {
            None => Ok(()),
            Some(group) => Err(Fault {
                thread: Some(group * 4 * LANES),
                said: "warps of its group issued other products".to_owned(),
            }),
        }
    }

    fn all_ended(&self, kernel: &Kernel) -> Result<(), Fault> {
        let Some(index) = self.threads.iter().position(|thread| thread.state != State::Ended) else {
            return match self.products.iter().position(Products::are_flying) {
                None => self.same_products(),
                Some(warp) => Err(Fault {
                    thread: Some(warp * LANES),
                    said: "the warp ends with products in flight".to_owned(),
                }),
            };
        };
        let others = match self.threads[index].state {
            State::AtWarp => &self.threads[index / LANES * LANES..][..LANES],
            _ => &self.threads[..],
        };
        let at = self.threads[index].at;
        let absent = others.iter().find(|other| other.at != at || other.state == State::Ended);
        let place = match absent {
            Some(other) if other.state == State::Ended => "ended".to_owned(),
            Some(other) => format!("are at {}", kernel.place(other.at)),
            None => "don't come".to_owned(),
        };
        Err(Fault { thread: Some(index), said: format!("it waits for threads that {place}") })
    }
}

fn said(kernel: &Kernel, thread: usize, refused: Refused) -> Fault {
    let said = match refused {
        Refused::Said(said) => said,
        Refused::Race(at, kind, conflict) => {
            let what = |kind| match kind {
                Kind::Read => "a read",
                Kind::Write => "a write",
                Kind::Atomic => "an atomic operation",
            };
            let (own, other) = (what(kind), what(conflict.kind));
            let place = kernel.place(conflict.instruction as usize);
            format!(
                "{own} at {at:#x} of shared memory, with no barrier since {other} by another thread or by {} last, {place}",
                conflict.thread,
            )
        }
    };
    Fault { thread: Some(thread), said }
}

/// Checks a launch against what the kernel says.
fn fits(kernel: &Kernel, launch: &Launch<'_>) -> Result<(), Error> {
    let name = &kernel.name;
    let Launch { threads, params, .. } = *launch;
    if params.len() != kernel.param_bytes {
        let (given, known) = (params.len(), kernel.param_bytes);
        return Err(Error::new(format!("{name}: {given} bytes of parameters, but the kernel has {known}")));
    }
    let wrong = kernel.threads.is_some_and(|exactly| threads != exactly)
        || kernel.most_threads.is_some_and(|most| threads > most)
        || threads == 0
        || threads > 1_024
        || !threads.is_multiple_of(LANES as u32);
    if wrong {
        let (exactly, most) = (kernel.threads, kernel.most_threads);
        return Err(Error::new(format!(
            "{name}: {threads} threads, but the kernel wants {exactly:?} and at most {most:?}, in whole warps"
        )));
    }
    if launch.grid.contains(&0) {
        return Err(Error::new(format!("{name}: a grid of {:?} blocks", launch.grid)));
    }
    Ok(())
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % bound as u64) as usize
    }
}
