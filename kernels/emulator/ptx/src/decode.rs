//! Statements of a kernel's body: declarations of registers, and instructions with their operands.
//!
//! A register's declared width must be the operand's. Constants become slots that nothing writes.

mod products;

use std::collections::HashMap;

use crate::Error;
use crate::lex::Token;
use crate::operands::{Operand, constant, operands_of, shown, special_named};
use crate::ops::{Class, Forms, combine};
use crate::program::{
    Guard, Instruction, Kernel, Op, PARAM_BASE, POISON, SHARED, SHARED_BASE, Shape, Slot, Source, SourceLine,
    Space, Special,
};

/// A body while it is read.
pub(crate) struct Body<'a, 'f> {
    kernel: Kernel,
    forms: &'f Forms,
    /// Registers declared together: class, first slot, and their number.
    families: HashMap<&'a str, (Class, Slot, u32)>,
    /// Names that each open scope within the body declared.
    scopes: Vec<Vec<&'a str>>,
    constants: HashMap<u64, Slot>,
    labels: HashMap<&'a str, usize>,
    /// Branches to labels: instruction, label, line.
    branches: Vec<(usize, &'a str, u32)>,
}

/// What went wrong, without the line.
type Wrong = String;

impl<'a, 'f> Body<'a, 'f> {
    pub(crate) fn new(kernel: Kernel, forms: &'f Forms) -> Self {
        Self {
            kernel,
            forms,
            families: HashMap::new(),
            scopes: Vec::new(),
            constants: HashMap::new(),
            labels: HashMap::new(),
            branches: Vec::new(),
        }
    }

    /// A scope within the body, as inline assembly has for its own registers.
    pub(crate) fn open(&mut self) {
        self.scopes.push(Vec::new());
    }

    /// The end of the latest scope; `false` if there is none.
    pub(crate) fn close(&mut self) -> bool {
        let Some(names) = self.scopes.pop() else { return false };
        for name in names {
            self.families.remove(name);
        }
        true
    }

    pub(crate) fn label(&mut self, label: &'a str, line: u32) -> Result<(), Error> {
        match self.labels.insert(label, self.kernel.instructions.len()) {
            None => Ok(()),
            Some(_) => Err(Error::new(format!("line {line}: `{label}` twice"))),
        }
    }

    pub(crate) fn source(&mut self, place: SourceLine, caller: Option<SourceLine>) {
        let instruction = self.kernel.instructions.len();
        self.kernel.sources.push(Source { instruction, place, caller });
    }

    pub(crate) fn statement(&mut self, tokens: &[Token<'a>], line: u32) -> Result<(), Error> {
        let read = match tokens {
            [Token::Word(".reg"), rest @ ..] => self.registers(rest),
            // Hints: how to unroll, and which bytes of a wide load matter.
            [Token::Word(".pragma"), Token::Text(_)] => Ok(()),
            _ => self.instruction(tokens, line),
        };
        read.map_err(|wrong| {
            let text: Vec<String> = tokens.iter().map(shown).collect();
            Error::new(format!("line {line}: {wrong}: {}", text.join(" ")))
        })
    }

    pub(crate) fn finish(mut self) -> Result<Kernel, Error> {
        for (instruction, label, line) in self.branches {
            let target = self.labels.get(label);
            let target = target.ok_or_else(|| Error::new(format!("line {line}: no label `{label}`")))?;
            self.kernel.instructions[instruction].offset = *target as i64;
        }
        if self.kernel.slots.is_empty() {
            self.kernel.slots.push(POISON);
        }
        let end = self.kernel.instructions.len();
        let closed = matches!(self.kernel.instructions.last(), Some(last) if matches!(last.op, Op::Return | Op::Branch)
            && last.guard == Guard::None);
        if !closed || self.labels.values().any(|target| *target == end) {
            return Err(Error::new(format!("{}: the body has no end", self.kernel.name)));
        }
        Ok(self.kernel)
    }

    fn slot(&mut self, initial: u64) -> Result<Slot, Wrong> {
        let slot = Slot::try_from(self.kernel.slots.len()).map_err(|_| "too many registers")?;
        self.kernel.slots.push(initial);
        Ok(slot)
    }

    /// `.b32 %r<N>` or `.b32 %name`.
    fn registers(&mut self, tokens: &[Token<'a>]) -> Result<(), Wrong> {
        let (class, name, count) = match tokens {
            [Token::Word(class), Token::Word(name)] => (*class, *name, None),
            [
                Token::Word(class),
                Token::Word(name),
                Token::Mark('<'),
                Token::Word(count),
                Token::Mark('>'),
            ] => (*class, *name, Some(count.parse().map_err(|_| "not a number of registers")?)),
            _ => return Err("a declaration of registers that is not known".to_owned()),
        };
        let class = match class {
            ".pred" => Class::Predicate,
            ".b16" => Class::Half,
            ".b32" | ".f32" => Class::Word,
            ".b64" | ".f64" => Class::Double,
            _ => return Err(format!("unknown type `{class}`")),
        };
        let first = self.slot(POISON)?;
        for _ in 1..count.unwrap_or(1) {
            self.slot(POISON)?;
        }
        match self.families.insert(name, (class, first, count.unwrap_or(0))) {
            None => {
                self.scopes.last_mut().into_iter().for_each(|names| names.push(name));
                Ok(())
            }
            Some(_) => Err(format!("`{name}` is declared twice")),
        }
    }

    /// A register, if the word is one.
    fn register(&self, word: &str) -> Option<(Class, Slot)> {
        if let Some((class, first, 0)) = self.families.get(word) {
            return Some((*class, *first));
        }
        let prefix = word.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let (class, first, count) = self.families.get(prefix)?;
        let index: u32 = word[prefix.len()..].parse().ok()?;
        (index < *count).then(|| (*class, first + index as Slot))
    }

    fn constant(&mut self, bits: u64) -> Result<Slot, Wrong> {
        if let Some(slot) = self.constants.get(&bits) {
            return Ok(*slot);
        }
        let slot = self.slot(bits)?;
        self.constants.insert(bits, slot);
        Ok(slot)
    }

    fn special(&mut self, special: Special) -> Result<Slot, Wrong> {
        if let Some((_, slot)) = self.kernel.specials.iter().find(|(known, _)| *known == special) {
            return Ok(*slot);
        }
        let slot = self.slot(POISON)?;
        self.kernel.specials.push((special, slot));
        Ok(slot)
    }

    /// Slot of an operand that is read.
    fn source_of(&mut self, word: &str, class: Class) -> Result<Slot, Wrong> {
        if let Some((found, slot)) = self.register(word) {
            return match found == class {
                true => Ok(slot),
                false => Err(format!("`{word}` has another width than the operand")),
            };
        }
        if let Some(special) = special_named(word) {
            return match class {
                Class::Word => self.special(special),
                _ => Err(format!("`{word}` has 32 bits")),
            };
        }
        if SHARED.contains(&word) && class != Class::Half {
            return self.constant(SHARED_BASE);
        }
        if word.strip_suffix("_param_0") == Some(&self.kernel.name) && class == Class::Double {
            return self.constant(PARAM_BASE);
        }
        let bits = constant(word, class).ok_or_else(|| format!("unknown operand `{word}`"))?;
        self.constant(bits)
    }

    /// Slot of an operand that is written.
    fn target_of(&self, word: &str, class: Class) -> Result<Slot, Wrong> {
        match self.register(word) {
            Some((found, slot)) if found == class => Ok(slot),
            Some(_) => Err(format!("`{word}` has another width than the operand")),
            None => Err(format!("`{word}` is no register")),
        }
    }

    fn instruction(&mut self, tokens: &[Token<'a>], line: u32) -> Result<(), Wrong> {
        let (guard, rest) = match tokens {
            [Token::Mark('@'), Token::Mark('!'), Token::Word(word), rest @ ..] => {
                (Guard::Unless(self.target_of(word, Class::Predicate)?), rest)
            }
            [Token::Mark('@'), Token::Word(word), rest @ ..] => {
                (Guard::If(self.target_of(word, Class::Predicate)?), rest)
            }
            _ => (Guard::None, tokens),
        };
        let [Token::Word(opcode), operands @ ..] = rest else { return Err("not an instruction".to_owned()) };
        let mut new = Instruction { op: Op::Return, guard, args: [0; 6], offset: 0, line };
        if matches!(*opcode, "bra" | "bra.uni") {
            let [Token::Word(label)] = operands else { return Err("a branch needs a label".to_owned()) };
            self.branches.push((self.kernel.instructions.len(), label, line));
            new.op = Op::Branch;
        } else {
            self.decode(opcode, &operands_of(operands)?, &mut new)?;
        }
        self.kernel.instructions.push(new);
        Ok(())
    }

    fn decode(&mut self, opcode: &str, operands: &[Operand<'a>], new: &mut Instruction) -> Result<(), Wrong> {
        let plain = operands.iter().all(|operand| matches!(operand, Operand::Word(_)));
        if plain && let Some(form) = self.forms.get(opcode) {
            new.op = form.op();
            if form.classes.len() != operands.len() {
                return Err("another number of operands is expected".to_owned());
            }
            for (index, (class, operand)) in form.classes.iter().zip(operands).enumerate() {
                let Operand::Word(word) = operand else {
                    return Err("a plain operand is expected".to_owned());
                };
                new.args[index] = match index {
                    0 => self.target_of(word, *class)?,
                    _ => self.source_of(word, *class)?,
                };
            }
            return Ok(());
        }
        let parts: Vec<&str> = opcode.split('.').collect();
        match (&parts[..], operands) {
            (["ret"], []) => new.op = Op::Return,
            (["griddepcontrol", "wait"], []) => new.op = Op::WaitKernels,
            (["griddepcontrol", "launch_dependents"], []) => new.op = Op::LaunchNext,
            (["bar", "sync"], [Operand::Word("0")]) => new.op = Op::BlockBarrier,
            (["bar", "warp", "sync"], [Operand::Word(mask)]) => {
                new.op = Op::WarpBarrier;
                new.args[0] = self.source_of(mask, Class::Word)?;
            }
            (["shfl", "sync", "bfly", "b32"], [Operand::Pair(to, valid), rest @ ..]) if rest.len() == 4 => {
                new.op = Op::Shuffle;
                new.args[0] = self.target_of(to, Class::Word)?;
                new.args[1] = self.target_of(valid, Class::Predicate)?;
                for (arg, operand) in new.args[2..].iter_mut().zip(rest) {
                    let Operand::Word(word) = operand else {
                        return Err("a plain operand is expected".to_owned());
                    };
                    *arg = self.source_of(word, Class::Word)?;
                }
            }
            (["mov", "b32" | "b64"], [Operand::Word(to), Operand::List(from)]) => {
                self.pack(parts[1], to, from, new)?;
            }
            (["mov", "b32" | "b64"], [Operand::List(to), Operand::Word(from)]) => {
                self.unpack(parts[1], to, from, new)?;
            }
            (["ld", space, modifiers @ ..], [values, Operand::Address(base, offset)]) => {
                let (space, shape) = self.access(space, modifiers, base, *offset, new)?;
                new.op = Op::Load(space, shape);
                self.values(values, shape, false, new)?;
            }
            (
                ["st", space @ ("shared" | "global"), modifiers @ ..],
                [Operand::Address(base, offset), values],
            ) => {
                let (space, shape) = self.access(space, modifiers, base, *offset, new)?;
                new.op = Op::Store(space, shape);
                self.values(values, shape, true, new)?;
            }
            (
                ["atom", space @ ("shared" | "global"), what, ty]
                | ["atom", "acq_rel", "gpu", space @ "global", what, ty],
                [Operand::Word(old), Operand::Address(base, offset), Operand::Word(operand)],
            ) => {
                let orders = parts[1] == "acq_rel";
                let combine = combine(what, ty).ok_or("an unknown instruction")?;
                let (space, shape) = self.access(space, &[ty], base, *offset, new)?;
                new.op = Op::Atomic(space, shape, combine, orders);
                new.args[1] = new.args[0];
                new.args[0] = self.target_of(old, class_of(shape.bytes))?;
                new.args[2] = self.source_of(operand, class_of(shape.bytes))?;
            }
            (
                ["vote", "sync", "any", "pred"],
                [Operand::Word(any), Operand::Word(own), Operand::Word(mask)],
            ) => {
                new.op = Op::Vote;
                new.args[0] = self.target_of(any, Class::Predicate)?;
                new.args[1] = self.source_of(own, Class::Predicate)?;
                new.args[2] = self.source_of(mask, Class::Word)?;
            }
            (["trap"], []) => new.op = Op::Trap,
            (["fence", "proxy", "async", "shared::cta"], []) => new.op = Op::Publish,
            (["wgmma", "fence", "sync", "aligned"], []) => new.op = Op::FenceProducts,
            (["wgmma", "commit_group", "sync", "aligned"], []) => new.op = Op::CommitProducts,
            (["wgmma", "wait_group", "sync", "aligned"], [Operand::Word(left)]) => {
                new.op = Op::WaitProducts;
                new.offset = left.parse().map_err(|_| "a number of groups is expected")?;
            }
            (
                ["wgmma", "mma_async", "sync", "aligned", shape, "f32", a, b],
                [Operand::List(d), rest @ ..],
            ) if a == b => {
                self.multiply_group(shape, a, d, rest, new)?;
            }
            (["cp", "async", "commit_group"], []) => new.op = Op::CommitCopies,
            (["cp", "async", "wait_group"], [Operand::Word(left)]) => {
                new.op = Op::WaitCopies;
                new.offset = left.parse().map_err(|_| "a number of groups is expected")?;
            }
            (
                ["cp", "async", cache @ ("ca" | "cg"), "shared", "global", "L2::128B"],
                [
                    Operand::Address(to, 0),
                    Operand::Address(from, 0),
                    Operand::Word(bytes),
                    Operand::Word(read),
                ],
            ) => {
                let bytes = bytes.parse().map_err(|_| "a number of bytes is expected")?;
                if !matches!((*cache, bytes), ("cg", 16) | ("ca", 4 | 8 | 16)) {
                    return Err(format!("copies of {bytes} bytes don't exist"));
                }
                new.op = Op::Copy(bytes);
                new.args[0] = self.source_of(to, Class::Word)?;
                new.args[1] = self.source_of(from, Class::Double)?;
                new.args[2] = self.source_of(read, Class::Word)?;
            }
            (
                ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", a, b, "f32"],
                [Operand::List(d), Operand::List(left), Operand::List(right), Operand::List(c)],
            ) if a == b && [d.len(), left.len(), right.len(), c.len()] == [4, 4, 2, 4] => {
                self.multiply(a, [d, left, right, c], new)?;
            }
            _ => return Err("an unknown instruction".to_owned()),
        }
        Ok(())
    }

    /// `mov.b32 %r, {%h, %h}` or `mov.b64 %rd, {%r, %r}`.
    fn pack(&mut self, ty: &str, to: &str, from: &[&str], new: &mut Instruction) -> Result<(), Wrong> {
        let [low, high] = from else { return Err("two parts are expected".to_owned()) };
        let (whole, part) = parts_of(ty);
        new.args[0] = self.target_of(to, whole)?;
        new.args[1] = self.source_of(low, part)?;
        new.args[2] = self.source_of(high, part)?;
        new.op = Op::Compute(match part {
            Class::Half => |slots, args| slots[usize::from(args[0])] = joined(slots, args, 16),
            _ => |slots, args| slots[usize::from(args[0])] = joined(slots, args, 32),
        });
        Ok(())
    }

    fn unpack(&mut self, ty: &str, to: &[&str], from: &str, new: &mut Instruction) -> Result<(), Wrong> {
        let [low, high] = to else { return Err("two parts are expected".to_owned()) };
        let (whole, part) = parts_of(ty);
        new.args[0] = self.target_of(low, part)?;
        new.args[1] = self.target_of(high, part)?;
        new.args[2] = self.source_of(from, whole)?;
        new.op = Op::Compute(match part {
            Class::Half => |slots, args| split(slots, args, 16),
            _ => |slots, args| split(slots, args, 32),
        });
        Ok(())
    }

    /// Space and shape of an access; sets the address.
    fn access(
        &mut self,
        space: &str,
        modifiers: &[&str],
        base: &str,
        offset: i64,
        new: &mut Instruction,
    ) -> Result<(Space, Shape), Wrong> {
        let (space, class) = match space {
            "param" => (Space::Param, Class::Double),
            // Addresses of shared memory have 32 bits in our kernels.
            "shared" => (Space::Shared, Class::Word),
            "global" => (Space::Global, Class::Double),
            _ => return Err("an unknown instruction".to_owned()),
        };
        let modifiers = match (space, modifiers) {
            // Caches don't exist here.
            (Space::Global, ["cg", rest @ ..]) => rest,
            _ => modifiers,
        };
        let (count, ty) = match modifiers {
            ["v2", ty] => (2, ty),
            ["v4", ty] => (4, ty),
            [ty] => (1, ty),
            _ => return Err("an unknown instruction".to_owned()),
        };
        let bytes = match *ty {
            "u8" => 1,
            "u16" | "b16" => 2,
            "u32" | "b32" | "f32" => 4,
            "u64" | "b64" | "f64" => 8,
            _ => return Err("an unknown instruction".to_owned()),
        };
        self.kernel.small_shared |= space == Space::Shared && bytes < 4;
        new.offset = offset;
        new.args[0] = self.source_of(base, class)?;
        Ok((space, Shape { bytes, count }))
    }

    fn values(
        &mut self,
        values: &Operand<'a>,
        shape: Shape,
        read: bool,
        new: &mut Instruction,
    ) -> Result<(), Wrong> {
        let words = match values {
            Operand::Word(word) => std::slice::from_ref(word),
            Operand::List(words) => words,
            _ => return Err("values are expected".to_owned()),
        };
        if words.len() != usize::from(shape.count) || shape.total() > 16 {
            return Err("another number of values is expected".to_owned());
        }
        for (index, word) in words.iter().enumerate() {
            // A register may be wider than the value (PTX ISA, operand size exceeding instruction-type size): what is
            // loaded is filled up with zeros, of what is stored the low part counts. So values are never signed here.
            let class = match self.register(word) {
                Some((class, _)) if class >= class_of(shape.bytes) => class,
                _ => class_of(shape.bytes),
            };
            new.args[1 + index] = match read {
                true => self.source_of(word, class)?,
                false => self.target_of(word, class)?,
            };
        }
        Ok(())
    }
}

/// Registers for a value of this size. There are none of 8 bits.
fn class_of(bytes: u8) -> Class {
    match bytes {
        1 | 2 => Class::Half,
        4 => Class::Word,
        _ => Class::Double,
    }
}

fn parts_of(ty: &str) -> (Class, Class) {
    match ty {
        "b32" => (Class::Word, Class::Half),
        _ => (Class::Double, Class::Word),
    }
}

fn joined(slots: &[u64], args: &[Slot; 6], bits: u32) -> u64 {
    slots[usize::from(args[1])] | slots[usize::from(args[2])] << bits
}

fn split(slots: &mut [u64], args: &[Slot; 6], bits: u32) {
    let whole = slots[usize::from(args[2])];
    slots[usize::from(args[0])] = whole & ((1 << bits) - 1);
    slots[usize::from(args[1])] = whole >> bits;
}
