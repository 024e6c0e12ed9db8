//! One instance of a program. `infer-sandbox-guest` states the protocol of a call.

use std::fmt::Display;

use wasmtime::{Memory, Store, Trap, TypedFunc};

use crate::bounds::Limits;
use crate::program::Program;

/// Bytes kept of a guest's panic message.
const WORDS_BYTES: usize = 512;
/// Longer refusals are cut: a refusal may quote the input.
const REFUSAL_BYTES: usize = 4_096;

/// A running program with what earlier calls left in its memory.
pub struct Instance {
    name: &'static str,
    store: Store<Limits>,
    instance: wasmtime::Instance,
    memory: Memory,
    room: TypedFunc<u32, u32>,
    last_words: u32,
}

/// An entry point of a program.
#[derive(Clone)]
pub struct Function(TypedFunc<(), u64>);

/// Why a call has no result.
#[derive(Debug)]
pub enum Failure {
    /// The program said so; the instance is as good as before.
    Refused(String),
    /// A limit ended the call, and the instance with it.
    Ended(String),
    /// The program panicked, which ended the instance.
    Panicked(String),
    /// The operating system refused what the instance needs. The input may be fine, and be taken at another moment.
    Machine(String),
}

impl Failure {
    /// What to tell whoever sent the input.
    pub fn why(self) -> String {
        match self {
            Self::Refused(why) | Self::Ended(why) | Self::Panicked(why) | Self::Machine(why) => why,
        }
    }
}

impl Instance {
    /// Starts a program.
    ///
    /// # Errors
    /// [`Failure::Machine`] where the machine has no memory for it, [`Failure::Ended`] where the module lacks an export of
    /// the protocol.
    pub fn new(program: &Program) -> Result<Self, Failure> {
        let compiled = &program.0;
        let mut store = Store::new(compiled.pre.module().engine(), Limits::new(compiled.bounds));
        store.limiter(|limits| limits);
        arm(&mut store, 0);
        let start = |mut store| {
            let instance = compiled.pre.instantiate(&mut store)?;
            let memory = instance
                .get_memory(&mut store, "memory")
                .ok_or_else(|| wasmtime::Error::msg("it exports no memory"))?;
            let room = instance.get_typed_func(&mut store, "room")?;
            let last_words = instance.get_typed_func::<(), u32>(&mut store, "last_words")?;
            let last_words = last_words.call(&mut store, ())?;
            Ok(Self { name: compiled.name, store, instance, memory, room, last_words })
        };
        start(store).map_err(|error: wasmtime::Error| {
            let cant = |why: &dyn Display| format!("the {} can't be started: {why:#}", compiled.name);
            match infer_wasm::lack(&error) {
                Some(lack) => Failure::Machine(cant(&lack)),
                None => Failure::Ended(cant(&error)),
            }
        })
    }

    /// The entry point `name`.
    ///
    /// # Errors
    /// [`Failure::Ended`] where the module has none of this name.
    pub fn function(&mut self, name: &str) -> Result<Function, Failure> {
        let found = self.instance.get_typed_func(&mut self.store, name);
        found.map(Function).map_err(|error| Failure::Ended(format!("the {}: {error:#}", self.name)))
    }

    /// Calls `function` with `request`. The instance is of no further use after any failure but [`Failure::Refused`].
    ///
    /// # Errors
    /// The program refuses the request or panics, or a limit ends the call.
    pub fn call(&mut self, function: &Function, request: &[u8]) -> Result<String, Failure> {
        arm(&mut self.store, request.len());
        match self.exchange(function, request) {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(refusal)) => Err(Failure::Refused(clip(&refusal))),
            Err(error) => Err(self.reason(&error)),
        }
    }

    /// Linear memory that the instance holds. It never shrinks.
    pub fn memory_bytes(&self) -> usize {
        self.memory.data_size(&self.store)
    }

    /// Writes the request, calls, reads the answer. The program is ours, but it works on hostile input: what it says
    /// about its memory is checked.
    fn exchange(&mut self, function: &Function, request: &[u8]) -> wasmtime::Result<Result<String, String>> {
        let room = self.room.call(&mut self.store, u32::try_from(request.len())?)?;
        self.memory.write(&mut self.store, room as usize, request)?;
        let answer = function.0.call(&mut self.store, ())?;
        let (refused, address, length) =
            (answer >> 63 == 1, answer >> 32 & 0x7fff_ffff, answer & 0xffff_ffff);
        let text = self.memory.data(&self.store).get(address as usize..(address + length) as usize);
        let text = text.ok_or_else(|| wasmtime::Error::msg("its answer lies outside of its memory"))?;
        let text = std::str::from_utf8(text)?.to_owned();
        Ok(if refused { Err(text) } else { Ok(text) })
    }

    /// What ended a call, as far as that can be told.
    fn reason(&self, error: &wasmtime::Error) -> Failure {
        let limits = self.store.data();
        if let Some(lack) = limits.lack() {
            return Failure::Machine(format!("the {} can't go on: {lack}", self.name));
        }
        let words = self.words();
        Failure::Ended(match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => "it needs too many steps".to_owned(),
            // The guest is safe Rust, whose part of the stack in its memory begins at address 0.
            Some(Trap::StackOverflow | Trap::MemoryOutOfBounds) => "it is nested too deeply".to_owned(),
            // A value that no 32-bit address space holds is not even asked for.
            _ if limits.refused() || words.contains("capacity overflow") => {
                format!("it needs more than {} MiB of memory", limits.memory_mib())
            }
            _ if words.is_empty() => clip(&format!("the {} failed: {}", self.name, error.root_cause())),
            _ => return Failure::Panicked(format!("the {} {words}", self.name)),
        })
    }

    /// A panic's message, in one line.
    fn words(&self) -> String {
        let words = self.memory.data(&self.store).get(self.last_words as usize..).unwrap_or_default();
        let words = words.iter().take(WORDS_BYTES).take_while(|byte| **byte != 0).copied();
        String::from_utf8_lossy(&words.collect::<Vec<_>>()).replace('\n', " ")
    }
}

fn arm(store: &mut Store<Limits>, request_bytes: usize) {
    let fuel = store.data_mut().arm(request_bytes);
    store.set_fuel(fuel).expect("the engine counts fuel");
}

fn clip(text: &str) -> String {
    let cut = text.floor_char_boundary(REFUSAL_BYTES);
    if cut == text.len() { text.to_owned() } else { format!("{}…", &text[..cut]) }
}
