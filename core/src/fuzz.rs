//! Properties over generated input, for as long as the environment says.
//!
//! Every run of the tests looks at some thousand inputs. With `SCAFO_FUZZ_SECONDS=60` each property goes on with new ones for a
//! minute; `scripts/fuzz.sh` gives every target a minute in all, which is what the continuous integration asks for. An input that
//! breaks a property is printed: mend the code, and keep the input as a file of the corpus.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::sample::{Index, select};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// Checks a property with rounds of so many inputs, and panics with the smallest input that was found to break it.
pub(crate) fn holds<S: Strategy>(cases: u32, input: &S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seconds = std::env::var("SCAFO_FUZZ_SECONDS").map_or(0, |text| text.parse().expect("a number of seconds"));
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        // Each runner begins with a seed of its own.
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        if let Err(broken) = TestRunner::new(config).run(input, &property) {
            panic!("{broken}");
        }
        if Instant::now() >= until {
            return;
        }
    }
}

/// The inputs of a target that are kept in `apiserver/fuzz/corpus`: usual ones, borderline cases, and whatever broke a property
/// once. In the order of their names.
pub(crate) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../apiserver/fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 5, "{} is a folder of inputs", folder.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// One change of an input.
#[derive(Debug, Clone)]
enum Change {
    /// A byte becomes another one.
    Set(Index, u8),
    /// A run of bytes is left out.
    Drop(Index, usize),
    /// A run of bytes stands twice.
    Repeat(Index, usize),
    /// A word stands in between, or in the place of as many bytes.
    Insert(Index, &'static str),
    Overwrite(Index, &'static str),
    /// A run of bytes changes places with another one.
    Move(Index, usize, Index),
    /// From here on it is another input, from there on.
    Splice(Index, Index, Index),
}

/// Inputs of the corpus of a target with up to eight changes, `words` of its language among them. One in nine is unchanged.
pub(crate) fn mutated(target: &str, words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let (at, run) = (any::<Index>, 1..32_usize);
    let change = prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), run.clone()).prop_map(|(at, run)| Change::Drop(at, run)),
        (at(), run.clone()).prop_map(|(at, run)| Change::Repeat(at, run)),
        (at(), select(words)).prop_map(|(at, word)| Change::Insert(at, word)),
        (at(), select(words)).prop_map(|(at, word)| Change::Overwrite(at, word)),
        (at(), run, at()).prop_map(|(at, run, to)| Change::Move(at, run, to)),
        (at(), at(), at()).prop_map(|(at, other, from)| Change::Splice(at, other, from)),
    ];
    let corpus = corpus(target);
    (any::<Index>(), proptest::collection::vec(change, 0..9)).prop_map(move |(which, changes)| {
        changes.iter().fold(which.get(&corpus).clone(), |input, change| changed(input, change, &corpus))
    })
}

fn changed(mut input: Vec<u8>, change: &Change, corpus: &[Vec<u8>]) -> Vec<u8> {
    let place = |at: &Index, length: usize| at.index(length + 1);
    let length = input.len();
    let range = |at: &Index, run: usize| place(at, length)..(place(at, length) + run).min(length);
    match change {
        Change::Set(at, byte) => {
            if length > 0 {
                input[at.index(length)] = *byte;
            }
        }
        Change::Drop(at, run) => drop(input.drain(range(at, *run))),
        Change::Repeat(at, run) => {
            let (range, twice) = (range(at, *run), input[range(at, *run)].to_vec());
            input.splice(range.end..range.end, twice);
        }
        Change::Insert(at, word) => drop(input.splice(place(at, length)..place(at, length), word.bytes())),
        Change::Overwrite(at, word) => drop(input.splice(range(at, word.len()), word.bytes())),
        Change::Move(at, run, to) => {
            let moved: Vec<u8> = input.drain(range(at, *run)).collect();
            let to = place(to, input.len());
            input.splice(to..to, moved);
        }
        Change::Splice(at, other, from) => {
            let other = other.get(corpus);
            input.truncate(place(at, length));
            input.extend_from_slice(&other[place(from, other.len())..]);
        }
    }
    input
}
