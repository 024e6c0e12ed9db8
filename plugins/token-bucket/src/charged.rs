//! The requests that are charged. Ids ascend, and charged ones come in runs, so runs are what is kept and
//! exported: the host exports the state every thousand steps, on the thread that the device waits for.
//!
//! An exported run is two numbers in LEB128: the distance from the end of the run before it to its first id,
//! and how many ids follow that one.

use std::collections::BTreeMap;

use infer_policy_sdk::SequenceId;

/// Requests remembered; beyond that the lowest id is forgotten. More than a host's longest queue, 100,000.
pub(crate) const MAX_CHARGED: usize = 1 << 17;

/// Ids of charged requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged {
    /// First and last id of each run; no two runs are adjacent.
    runs: BTreeMap<u64, u64>,
    len: usize,
}

impl Charged {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, SequenceId(id): SequenceId) -> bool {
        self.runs.range(..=id).next_back().is_some_and(|(_, &last)| id <= last)
    }

    /// Adds an id. Forgets the lowest one if there are too many.
    pub fn insert(&mut self, id: SequenceId) {
        if self.contains(id) {
            return;
        }
        if self.len == MAX_CHARGED {
            self.forget_lowest();
        }
        let (mut first, mut last) = (id.0, id.0);
        if let Some((&before, &end)) = self.runs.range(..id.0).next_back()
            && end + 1 == id.0
        {
            first = before;
        }
        if let Some(end) = id.0.checked_add(1).and_then(|next| self.runs.remove(&next)) {
            last = end;
        }
        self.runs.insert(first, last);
        self.len += 1;
    }

    fn forget_lowest(&mut self) {
        if let Some((first, last)) = self.runs.pop_first() {
            self.len -= 1;
            if first < last {
                self.runs.insert(first + 1, last);
            }
        }
    }

    pub fn write(&self, bytes: &mut Vec<u8>) {
        let mut end = 0;
        for (&first, &last) in &self.runs {
            write_number(first - end, bytes);
            write_number(last - first, bytes);
            end = last;
        }
    }

    /// `None` for bytes that `write` doesn't produce, and for too many ids.
    pub fn read(mut bytes: &[u8]) -> Option<Self> {
        let mut charged = Self::default();
        let mut end = 0u64;
        while !bytes.is_empty() {
            let gap = read_number(&mut bytes)?;
            let more = read_number(&mut bytes)?;
            if gap < 2 && !charged.runs.is_empty() {
                return None;
            }
            let first = end.checked_add(gap)?;
            end = first.checked_add(more)?;
            charged.runs.insert(first, end);
            let len = usize::try_from(more).ok()?.checked_add(1)?;
            charged.len = charged.len.checked_add(len).filter(|&len| len <= MAX_CHARGED)?;
        }
        Some(charged)
    }
}

fn write_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number > 0x7F {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7F);
        number |= (bits << shift >> shift == bits).then_some(bits << shift)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use infer_policy_sdk::testing::for_seeds;

    use super::*;

    fn written(charged: &Charged) -> Vec<u8> {
        let mut bytes = Vec::new();
        charged.write(&mut bytes);
        bytes
    }

    #[test]
    fn ids_equal_a_set_and_survive_export() {
        for_seeds(0..300, |rng| {
            let (mut charged, mut set) = (Charged::default(), BTreeSet::new());
            let base = [0, 1 << 40, u64::MAX - 60][rng.between(0, 2) as usize];
            for _ in 0..rng.between(0, 80) {
                let id = base + u64::from(rng.between(0, 60));
                charged.insert(SequenceId(id));
                set.insert(id);
            }
            let same = |id: u64| charged.contains(SequenceId(id)) == set.contains(&id);
            assert!((base..=base + 60).all(same), "{charged:?} {set:?}");
            assert_eq!(charged.len(), set.len());
            assert_eq!(Charged::read(&written(&charged)), Some(charged));
        });
    }

    #[test]
    fn a_full_set_exports_to_two_bytes_an_id_or_one_run() {
        for (apart, most_bytes) in [(1, 8), (2, 2 * MAX_CHARGED + 8), (50, 2 * MAX_CHARGED + 8)] {
            let mut charged = Charged::default();
            for n in 0..MAX_CHARGED as u64 + 100 {
                charged.insert(SequenceId((1 << 32) + n * apart));
            }
            assert_eq!(charged.len(), MAX_CHARGED);
            assert!(!charged.contains(SequenceId((1 << 32) + 99 * apart)));
            let bytes = written(&charged);
            assert!(bytes.len() <= most_bytes, "{apart} apart: {} bytes", bytes.len());
            assert_eq!(Charged::read(&bytes), Some(charged));
        }
    }

    #[test]
    fn malformed_bytes_are_refused() {
        let mut much = Vec::new();
        write_number(1, &mut much);
        write_number(MAX_CHARGED as u64, &mut much);
        let wrong: [&[u8]; 6] = [
            &[5],
            &[0x80],
            &[1, 0, 1, 0],
            &[0xFF; 12],
            &[1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1],
            &much,
        ];
        for bytes in wrong {
            assert_eq!(Charged::read(bytes), None, "{bytes:?}");
        }
        for_seeds(0..2_000, |rng| {
            let bytes: Vec<u8> = (0..rng.between(0, 24)).map(|_| rng.next_u64() as u8).collect();
            assert!(Charged::read(&bytes).is_none_or(|charged| charged.len() <= MAX_CHARGED));
        });
    }
}
