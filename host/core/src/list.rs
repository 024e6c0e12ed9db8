//! Linked lists over dense indexes: constant-time removal from the middle, no allocation per node.

/// "No node".
pub(crate) const NONE: u32 = u32::MAX;

/// Links of doubly linked lists whose owners keep the heads. A node is in at most one list.
#[derive(Debug, Default)]
pub(crate) struct Links {
    nodes: Vec<(u32, u32)>,
}

impl Links {
    /// Makes room for nodes `0 .. len`.
    pub fn grow(&mut self, len: usize) {
        if self.nodes.len() < len {
            self.nodes.resize(len, (NONE, NONE));
        }
    }

    pub fn push_front(&mut self, head: &mut u32, node: u32) {
        debug_assert_eq!(self.nodes[node as usize], (NONE, NONE));
        self.nodes[node as usize] = (NONE, *head);
        if *head != NONE {
            self.nodes[*head as usize].0 = node;
        }
        *head = node;
    }

    pub fn remove(&mut self, head: &mut u32, node: u32) {
        let (prev, next) = std::mem::replace(&mut self.nodes[node as usize], (NONE, NONE));
        if prev == NONE {
            debug_assert_eq!(*head, node);
            *head = next;
        } else {
            self.nodes[prev as usize].1 = next;
        }
        if next != NONE {
            self.nodes[next as usize].0 = prev;
        }
    }

    /// The node after `node`, or `NONE`.
    pub fn next(&self, node: u32) -> u32 {
        self.nodes[node as usize].1
    }
}

/// A list in order of use: oldest at the front.
#[derive(Debug)]
pub(crate) struct Lru {
    /// `(prev, next)` per node; the last node is the sentinel that closes the circle.
    nodes: Vec<(u32, u32)>,
    len: u32,
}

impl Lru {
    /// An empty list over nodes `0 .. capacity`.
    pub fn new(capacity: u32) -> Self {
        let mut nodes = vec![(NONE, NONE); capacity as usize + 1];
        nodes[capacity as usize] = (capacity, capacity);
        Self { nodes, len: 0 }
    }

    fn sentinel(&self) -> u32 {
        self.nodes.len() as u32 - 1
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn push_back(&mut self, node: u32) {
        debug_assert!(!self.contains(node));
        let end = self.sentinel();
        let last = self.nodes[end as usize].0;
        self.nodes[node as usize] = (last, end);
        self.nodes[last as usize].1 = node;
        self.nodes[end as usize].0 = node;
        self.len += 1;
    }

    pub fn remove(&mut self, node: u32) {
        let (prev, next) = std::mem::replace(&mut self.nodes[node as usize], (NONE, NONE));
        debug_assert!(next != NONE, "node {node} is in no list");
        self.nodes[prev as usize].1 = next;
        self.nodes[next as usize].0 = prev;
        self.len -= 1;
    }

    pub fn contains(&self, node: u32) -> bool {
        self.nodes[node as usize].1 != NONE
    }

    /// All nodes, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let end = self.sentinel();
        let mut node = self.nodes[end as usize].1;
        std::iter::from_fn(move || {
            let at = (node != end).then_some(node)?;
            node = self.nodes[at as usize].1;
            Some(at)
        })
    }
}
