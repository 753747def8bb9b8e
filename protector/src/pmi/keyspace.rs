//! The keys of one job, as one node knows them.

use std::collections::HashMap;

use radic_wire::limits;

/// The key that tells a library which ranks share a node. A daemon sets it, no rank does.
const PROCESS_MAPPING: &str = "PMI_process_mapping";

/// Why a key was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeySpaceError {
    /// PMI-1 lets each key be put once.
    #[error("duplicate_key {0}")]
    Duplicate(String),
    /// The key space has [`limits::PMI_KEYS`] keys.
    #[error("the key space is full: {} keys", limits::PMI_KEYS)]
    Full,
}

/// The key space of one job on one node: what its local ranks put, and what the job's home merged from all nodes at the last
/// fence (the release of a barrier). A local put is visible to local ranks at once, to the others after the next fence.
#[derive(Debug)]
pub struct KeySpace {
    /// In the order in which this node learned them; only `get_by_index` sees the order.
    entries: Vec<(String, String)>,
    index: HashMap<String, usize>,
    /// Indices of the local puts since the last fence.
    fresh: Vec<usize>,
}

impl KeySpace {
    /// The key space of a job of `size` ranks. It says that each rank is alone on its node, so no library tries shared memory.
    pub fn new(size: u32) -> Self {
        let mut keys = KeySpace { entries: Vec::new(), index: HashMap::new(), fresh: Vec::new() };
        keys.insert(PROCESS_MAPPING.to_owned(), format!("(vector,(0,{size},1))"));
        keys
    }

    /// Takes a put of a local rank.
    pub fn put(&mut self, key: String, value: String) -> Result<(), KeySpaceError> {
        if self.get(&key) == Some(&value) {
            return Ok(()); // Said twice: by a process that was brought back.
        }
        if self.index.contains_key(&key) {
            return Err(KeySpaceError::Duplicate(key));
        }
        if self.entries.len() >= limits::PMI_KEYS {
            return Err(KeySpaceError::Full);
        }
        let at = self.insert(key, value);
        self.fresh.push(at);
        Ok(())
    }

    /// The value of `key`, as far as this node knows it.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.index.get(key).map(|&at| self.entries[at].1.as_str())
    }

    /// The key and value number `index`, from 0.
    pub fn get_by_index(&self, index: u32) -> Option<(&str, &str)> {
        self.entries.get(index as usize).map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// All keys.
    pub fn all(&self) -> Vec<(String, String)> {
        self.entries.clone()
    }

    /// The local puts since the last call: what goes to the job's home with the node's entry into a barrier.
    pub fn take_fresh(&mut self) -> Vec<(String, String)> {
        self.fresh.drain(..).map(|at| self.entries[at].clone()).collect()
    }

    /// Takes the puts of all nodes, as the job's home sends them when it releases a barrier. The home's word is final: where two
    /// nodes put the same key, every node ends up with the same value.
    pub fn merge(&mut self, entries: impl IntoIterator<Item = (String, String)>) -> Result<(), KeySpaceError> {
        for (key, value) in entries {
            if let Some(&at) = self.index.get(&key) {
                self.entries[at].1 = value;
            } else if self.entries.len() < limits::PMI_KEYS {
                self.insert(key, value);
            } else {
                return Err(KeySpaceError::Full);
            }
        }
        Ok(())
    }

    fn insert(&mut self, key: String, value: String) -> usize {
        let at = self.entries.len();
        let before = self.index.insert(key.clone(), at);
        assert!(before.is_none(), "the key {key} is inserted once");
        self.entries.push((key, value));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn every_rank_is_alone_on_its_node() {
        let keys = KeySpace::new(32);
        assert_eq!(keys.get(PROCESS_MAPPING), Some("(vector,(0,32,1))"));
        assert_eq!(keys.get("PMI_hwloc_xmlfile"), None);
    }

    #[test]
    fn keys_are_put_once_and_travel_once() {
        let mut keys = KeySpace::new(2);
        keys.put("a".into(), "1".into()).unwrap();
        assert_eq!(keys.put("a".into(), "2".into()), Err(KeySpaceError::Duplicate("a".into())));
        assert_eq!(keys.put(PROCESS_MAPPING.into(), "x".into()), Err(KeySpaceError::Duplicate(PROCESS_MAPPING.into())));
        assert_eq!(keys.get("a"), Some("1"));
        assert_eq!(keys.take_fresh(), [pair("a", "1")]);
        assert_eq!(keys.take_fresh(), []);
        keys.put("b".into(), "2".into()).unwrap();
        assert_eq!(keys.take_fresh(), [pair("b", "2")]);
    }

    #[test]
    fn the_home_has_the_last_word() {
        let mut keys = KeySpace::new(2);
        keys.put("a".into(), "mine".into()).unwrap();
        keys.merge([pair("a", "theirs"), pair("c", "3")]).unwrap();
        assert_eq!(keys.get("a"), Some("theirs"));
        assert_eq!(keys.get("c"), Some("3"));
        let all: Vec<_> = (0..).map_while(|i| keys.get_by_index(i)).map(|(key, _)| key).collect();
        assert_eq!(all, [PROCESS_MAPPING, "a", "c"]);
    }

    #[test]
    fn the_key_space_is_bounded() {
        let mut keys = KeySpace::new(1);
        keys.merge((1..limits::PMI_KEYS).map(|i| (i.to_string(), String::new()))).unwrap();
        assert_eq!(keys.put("more".into(), String::new()), Err(KeySpaceError::Full));
        assert_eq!(keys.merge([pair("more", "")]), Err(KeySpaceError::Full));
        assert_eq!(keys.merge([pair("1", "again")]), Ok(()));
    }
}
