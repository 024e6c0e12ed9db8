//! Runs small programs: memory that remembers early reads, and a frame with registers and addresses.
#![allow(dead_code, reason = "each test file uses a part")]

use std::cell::RefCell;
use std::ops::Range;

use infer_ptx::{Error, Global, Launch, Machine, Module, Party, Write};

/// One allocation.
pub struct Memory {
    bytes: Vec<u64>,
    /// Reads before the wait for earlier kernels: offset and bytes.
    pub early: RefCell<Vec<(u64, u64)>>,
    pub refuse_early: bool,
}

impl Memory {
    pub fn new(words: &[u32]) -> Self {
        let pair = |pair: &[u32]| u64::from(pair[0]) | u64::from(*pair.get(1).unwrap_or(&0)) << 32;
        let bytes = words.chunks(2).map(pair).collect();
        Self { bytes, early: RefCell::default(), refuse_early: false }
    }

    pub fn at(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    pub fn words(&self) -> Vec<u32> {
        self.bytes.iter().flat_map(|pair| [*pair as u32, (*pair >> 32) as u32]).collect()
    }
}

// SAFETY: the range is that of the vector, which only the launch accesses while it borrows this.
unsafe impl Global for Memory {
    fn allocation(&self, at: u64) -> Option<Range<u64>> {
        let start = self.at();
        let range = start..start + 8 * self.bytes.len() as u64;
        range.contains(&at).then_some(range)
    }

    fn read(&self, at: u64, bytes: u64, _: &Party, waited: bool) -> Result<(), String> {
        if !waited {
            self.early.borrow_mut().push((at - self.at(), bytes));
        }
        if self.refuse_early && !waited { Err("too early".to_owned()) } else { Ok(()) }
    }

    fn write(&mut self, _: u64, _: u64, _: &Party, _: Write) -> Result<(), String> {
        Ok(())
    }
}

/// A kernel `k` with this body. `%d30` is its memory and `%r30` the thread.
pub fn program(target: u32, body: &str) -> String {
    let lines: String = body.lines().map(|line| format!("{}\n", line.trim())).collect();
    format!(
        ".version 9.0\n.target sm_{target}\n.address_size 64\n\
         .extern .shared .align 16 .b8 shared[];\n\
         .visible .entry k(\n.param .align 8 .b8 k_param_0[8]\n)\n.maxntid 64, 1, 1\n{{\n\
         .reg .pred %p<10>;\n.reg .b16 %h<10>;\n.reg .b32 %r<32>;\n.reg .f32 %f<40>;\n.reg .b64 %d<32>;\n\
         .reg .f64 %g<10>;\nld.param.u64 %d30, [k_param_0];\nmov.u32 %r30, %tid.x;\n{lines}ret;\n}}\n"
    )
}

/// Line of the first line of a body.
pub const FIRST: u32 = 18;

pub fn parse(target: u32, body: &str) -> Result<Module, Error> {
    Module::parse(&program(target, body))
}

pub fn launch(params: &[u8], threads: u32, seed: u64) -> Launch<'_> {
    Launch { kernel: "k", grid: [1, 1, 1], threads, shared_bytes: 1_024, params, seed }
}

/// Runs a body on one block.
pub fn run(target: u32, body: &str, threads: u32, seed: u64, memory: &mut Memory) -> Result<(), Error> {
    let module = parse(target, body).expect("a program");
    let params = memory.at().to_ne_bytes();
    Machine::default().run(&module, &launch(&params, threads, seed), memory)
}

/// What a body does wrong, with every seed of some.
pub fn faults(target: u32, body: &str, threads: u32) -> Vec<String> {
    let run = |seed| run(target, body, threads, seed, &mut Memory::new(&[0; 64]));
    (0..8).filter_map(|seed| run(seed).err()).map(|error| error.message).collect()
}
