//! One instance of the renderer with one template in it. `host/chat/guest` says what its exports are.

use wasmtime::{Memory, Store, Trap, TypedFunc};

use crate::limits::Limits;
use crate::sandbox::Sandbox;

/// Bytes that a panic of the renderer may say.
const WORDS_BYTES: usize = 512;
/// Longer refusals are cut: a template may refuse with a whole conversation.
const REFUSAL_BYTES: usize = 4_096;

pub(crate) struct Instance {
    store: Store<Limits>,
    memory: Memory,
    room: TypedFunc<u32, u32>,
    render: TypedFunc<(), u64>,
    last_words: u32,
}

/// Why there is no prompt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The template said so; the instance is as good as before.
    Refused(String),
    /// A limit ended the call, and the instance with it.
    Ended(String),
}

impl Failure {
    pub(crate) fn why(self) -> String {
        match self {
            Self::Refused(why) | Self::Ended(why) => why,
        }
    }
}

impl Instance {
    /// An instance that has taken the template in `request`.
    pub(crate) fn new(sandbox: &Sandbox, request: &[u8]) -> Result<Self, Failure> {
        let mut store = Store::new(sandbox.pre.module().engine(), Limits::default());
        store.limiter(|limits| limits);
        arm(&mut store, request.len());
        let (mut instance, load) = Self::instantiate(sandbox, store)
            .map_err(|error| Failure::Ended(format!("the renderer can't be started: {error:#}")))?;
        instance.call(&load, request)?;
        Ok(instance)
    }

    fn instantiate(
        sandbox: &Sandbox,
        mut store: Store<Limits>,
    ) -> wasmtime::Result<(Self, TypedFunc<(), u64>)> {
        let instance = sandbox.pre.instantiate(&mut store)?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| wasmtime::Error::msg("it exports no memory"))?;
        let room = instance.get_typed_func(&mut store, "room")?;
        let load = instance.get_typed_func(&mut store, "load")?;
        let render = instance.get_typed_func(&mut store, "render")?;
        let last_words =
            instance.get_typed_func::<(), u32>(&mut store, "last_words")?.call(&mut store, ())?;
        Ok((Self { store, memory, room, render, last_words }, load))
    }

    /// The prompt for the context in `request`. After `Failure::Ended` the instance is of no use.
    pub(crate) fn render(&mut self, request: &[u8]) -> Result<String, Failure> {
        arm(&mut self.store, request.len());
        self.call(&self.render.clone(), request)
    }

    /// What it holds of the machine's memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.data_size(&self.store)
    }

    fn call(&mut self, function: &TypedFunc<(), u64>, request: &[u8]) -> Result<String, Failure> {
        match self.exchange(function, request) {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(refusal)) => Err(Failure::Refused(clip(&refusal))),
            Err(error) => Err(Failure::Ended(self.reason(&error))),
        }
    }

    /// Writes the request, calls, reads the answer. The renderer is ours, but a stranger's program runs in it: what
    /// it says about its memory is checked.
    fn exchange(
        &mut self,
        function: &TypedFunc<(), u64>,
        request: &[u8],
    ) -> wasmtime::Result<Result<String, String>> {
        let room = self.room.call(&mut self.store, u32::try_from(request.len())?)?;
        self.memory.write(&mut self.store, room as usize, request)?;
        let answer = function.call(&mut self.store, ())?;
        let (refused, address, length) =
            (answer >> 63 == 1, answer >> 32 & 0x7fff_ffff, answer & 0xffff_ffff);
        let text = self.memory.data(&self.store).get(address as usize..(address + length) as usize);
        let text = text.ok_or_else(|| wasmtime::Error::msg("its answer lies outside of its memory"))?;
        let text = std::str::from_utf8(text)?.to_owned();
        Ok(if refused { Err(text) } else { Ok(text) })
    }

    /// Which limit ended a call, as far as that can be told.
    fn reason(&self, error: &wasmtime::Error) -> String {
        let limits = self.store.data();
        let words = self.words();
        match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => "it needs too many steps".to_owned(),
            // The renderer is safe Rust, whose part of the stack in its memory begins at address 0.
            Some(Trap::StackOverflow | Trap::MemoryOutOfBounds) => "it is nested too deeply".to_owned(),
            // A value that no memory of a 32-bit machine holds is not even asked for.
            _ if limits.refused() || words.contains("capacity overflow") => {
                format!("it needs more than {} MiB of memory", limits.memory_mib())
            }
            _ if words.is_empty() => clip(&format!("the renderer failed: {}", error.root_cause())),
            _ => format!("the renderer {words}"),
        }
    }

    /// What a panic said, in one line.
    fn words(&self) -> String {
        let words = self.memory.data(&self.store).get(self.last_words as usize..).unwrap_or_default();
        let words = words.iter().take(WORDS_BYTES).take_while(|byte| **byte != 0).copied();
        String::from_utf8_lossy(&words.collect::<Vec<_>>()).replace('\n', " ")
    }
}

fn arm(store: &mut Store<Limits>, request_bytes: usize) {
    store.data_mut().arm(request_bytes);
    store.set_fuel(Limits::fuel(request_bytes)).expect("the engine counts fuel");
}

fn clip(text: &str) -> String {
    let cut = text.floor_char_boundary(REFUSAL_BYTES);
    if cut == text.len() { text.to_owned() } else { format!("{}…", &text[..cut]) }
}
