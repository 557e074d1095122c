//! Sorted names with a value each, in one piece of memory: to compare two lists of a hundred thousand is to compare two texts.

use std::cmp::Ordering;

/// Names in ascending order, each once, with what belongs to each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names<T> {
    text: String,
    /// Where each name ends in the text.
    ends: Vec<u32>,
    values: Vec<T>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { text: String::new(), ends: Vec::new(), values: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Names<T> {
    /// Adds a name behind all others. Beyond 4 GiB of names nothing is added.
    pub(crate) fn push(&mut self, name: &str, value: T) {
        if let Ok(end) = u32::try_from(self.text.len() + name.len()) {
            self.text.push_str(name);
            self.ends.push(end);
            self.values.push(value);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The name at a place; the empty one behind the last.
    pub(crate) fn name(&self, index: usize) -> &str {
        let end = |index: usize| self.ends.get(index).map_or(0, |end| *end as usize);
        let from = index.checked_sub(1).map_or(0, end);
        self.text.get(from..end(index)).unwrap_or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<T> {
        let index = self.first_from(name, 0);
        if self.name(index) == name { self.values.get(index).copied() } else { None }
    }

    /// Every name with its value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, T)> {
        self.values.iter().enumerate().map(|(index, value)| (self.name(index), *value))
    }

    /// Names that start so.
    pub(crate) fn starting_with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let from = self.first_from(prefix, 0);
        (from..self.len()).map(|index| self.name(index)).take_while(move |name| name.starts_with(prefix))
    }

    /// The first place from `from` on whose name is not below `name`. Near ones are found quickly, so that walking through one list
    /// by the names of another costs little more than reading both.
    pub(crate) fn first_from(&self, name: &str, from: usize) -> usize {
        let (mut low, mut step) = (from, 1);
        while low + step < self.len() && self.name(low + step) < name {
            low += step;
            step *= 2;
        }
        let mut high = (low + step).min(self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.name(middle) < name { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Visits what is in one of two lists and not, or with another value, in the other.
    pub(crate) fn differing<'a>(&'a self, other: &'a Self, mut visit: impl FnMut(&'a str)) {
        // What is equal at both ends is passed over as text; only between is it looked at name by name.
        let first = self.equal_ahead(other);
        let (mut a, mut b) = (first, first);
        let behind = self.equal_behind(other, first);
        let (end_a, end_b) = (self.len() - behind, other.len() - behind);
        while a < end_a || b < end_b {
            let order = match (a < end_a, b < end_b) {
                (true, true) => self.name(a).cmp(other.name(b)),
                (true, false) => Ordering::Less,
                _ => Ordering::Greater,
            };
            match order {
                Ordering::Less => visit(self.name(a)),
                Ordering::Greater => visit(other.name(b)),
                Ordering::Equal if self.values.get(a) != other.values.get(b) => visit(self.name(a)),
                Ordering::Equal => {}
            }
            a += usize::from(order.is_le());
            b += usize::from(order.is_ge());
        }
    }

    /// How many entries are the same from the start.
    fn equal_ahead(&self, other: &Self) -> usize {
        let ends = equal(self.ends.iter(), other.ends.iter());
        let values = equal(self.values.iter(), other.values.iter());
        let bytes = equal(self.text.as_bytes().chunks(64), other.text.as_bytes().chunks(64)) * 64;
        let names = self.ends.partition_point(|end| *end as usize <= bytes);
        // Where the ends are the same and the bytes are, the names are.
        ends.min(values).min(names)
    }

    /// How many entries are the same at the end, of those from `first` on.
    fn equal_behind(&self, other: &Self, first: usize) -> usize {
        let most = self.len().min(other.len()) - first;
        let same = |back: &usize| {
            let (a, b) = (self.len() - back, other.len() - back);
            self.values.get(a) == other.values.get(b) && self.name(a) == other.name(b)
        };
        (1..=most).take_while(same).count()
    }
}

/// How many items are equal from the start.
fn equal<I: PartialEq>(a: impl Iterator<Item = I>, b: impl Iterator<Item = I>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn names(of: &BTreeMap<String, u16>) -> Names<u16> {
        let mut names = Names::default();
        of.iter().for_each(|(name, value)| names.push(name, *value));
        names
    }

    proptest! {
        #[test]
        fn lists_are_searched_and_compared_as_maps_are(
            a in prop::collection::btree_map("[ab]{1,5}", 0..2u16, 0..60),
            b in prop::collection::btree_map("[ab]{1,5}", 0..2u16, 0..60),
            changes in prop::collection::vec("[ab]{1,5}", 0..3),
            sought in "[abc]{0,5}",
            from in 0..10usize,
        ) {
            let list = names(&a);
            prop_assert_eq!(list.iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>(), a.clone());
            prop_assert_eq!(list.get(&sought), a.get(&sought).copied());
            let below = a.keys().filter(|name| **name < sought).count();
            let from = from.min(below);
            prop_assert_eq!(list.first_from(&sought, from), below);
            let starting: Vec<_> = a.keys().filter(|name| name.starts_with(&sought)).map(String::as_str).collect();
            prop_assert_eq!(list.starting_with(&sought).collect::<Vec<_>>(), starting);
            let mut near = a.clone();
            for name in changes {
                if near.remove(&name).is_none() {
                    near.insert(name, 1);
                }
            }
            for other in [&b, &near, &a] {
                let keys: BTreeSet<&str> = a.keys().chain(other.keys()).map(String::as_str).collect();
                let expected: Vec<&str> = keys.into_iter().filter(|name| a.get(*name) != other.get(*name)).collect();
                let (list, other) = (names(&a), names(other));
                let mut found = Vec::new();
                list.differing(&other, |name| found.push(name.to_owned()));
                prop_assert_eq!(found, expected);
            }
        }
    }
}
