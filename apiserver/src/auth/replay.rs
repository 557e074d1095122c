//! Single use: the ids of accepted tokens, for as long as a token could be accepted again.
//!
//! Ids lie in buckets of one minute, by when their token stops being acceptable (its `exp` and the clock skew). A bucket is
//! forgotten as a whole once its minute is over. Each bucket has a file that an id is written to before its token is
//! accepted, so that a crash of this process forgets nothing. The writes are not synchronised to the disk: what the
//! machine itself may lose with a power failure is covered by refusing, after a new boot, every token that was signed before
//! this process started. When the disk takes no more ids, the mark of the boot is emptied, which needs no space: the ids are then
//! in memory only, and the next process refuses what was signed before it started, as after a new boot. So a full disk
//! neither closes the API nor opens it to a second use. What another node accepted is not known here: a token is single-use on
//! each node.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::time::Timestamp;
use scafo_core::token::{CLOCK_SKEW_S, Claims};

/// Width of a bucket in seconds.
const BUCKET_S: i64 = 60;
/// Tokens in one bucket: a million a minute. At most four buckets are alive, since a token is acceptable for at most two
/// minutes from now; full they take about 120 MiB.
const BUCKET_TOKENS: usize = 1_000_000;
const ID_BYTES: usize = 16;
const BOOT_MARK: &str = "boot";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

type Id = [u8; ID_BYTES];

/// What became of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was never accepted before, and now it is.
    First,
    /// It was accepted before, or may have been.
    Used,
}

pub(super) struct Replay {
    dir: PathBuf,
    /// Tokens signed earlier may have been accepted by a machine that lost the record of it.
    not_before_s: i64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    buckets: BTreeMap<i64, Bucket>,
    /// Every bucket below was forgotten, even if the clock goes back.
    floor: i64,
    /// The disk failed at some time, and the next process knows.
    in_memory: bool,
}

#[derive(Default)]
struct Bucket {
    ids: HashSet<Id>,
    /// `None`: what comes is in memory only.
    file: Option<File>,
    /// Length of what is whole in the file.
    length: u64,
}

impl Replay {
    /// Reads back what the last process accepted.
    pub(super) fn open(dir: &Path, now: Timestamp) -> io::Result<Self> {
        let dir = dir.join("tokens");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let not_before_s = if may_be_incomplete(&dir)? { now.as_seconds() } else { i64::MIN };
        let mut state = State { floor: now.as_seconds().div_euclid(BUCKET_S), ..State::default() };
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let Some(number) = bucket_number(&path) else { continue };
            if number < state.floor {
                fs::remove_file(&path)?;
            } else {
                state.buckets.insert(number, Bucket::load(&path)?);
            }
        }
        Ok(Self { dir, not_before_s, state: Mutex::new(state) })
    }

    /// How many ids are remembered.
    pub(super) fn remembered(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.buckets.values().map(|bucket| bucket.ids.len()).sum()
    }

    /// Accepts a verified token, unless it was accepted before. Of several calls with one token exactly one is the first.
    ///
    /// # Errors
    /// `draining` when it cannot be written down, or too many were; then it is not accepted.
    pub(super) fn accept(&self, claims: &Claims, now: Timestamp) -> Result<Outcome, Problem> {
        let Some(id) = id(claims) else { return Ok(Outcome::Used) };
        if claims.iat < self.not_before_s {
            return Ok(Outcome::Used);
        }
        let number = claims.exp.saturating_add(CLOCK_SKEW_S).div_euclid(BUCKET_S);
        // One write of 16 bytes to the page cache happens under this lock. Nothing in it panics.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.forget(now.as_seconds().div_euclid(BUCKET_S), &self.dir);
        if number < state.floor {
            return Ok(Outcome::Used);
        }
        if !state.buckets.contains_key(&number) {
            let loaded = Bucket::load(&file_of(&self.dir, number)).or_else(|error| {
                state.go_on_in_memory(&self.dir, error)?;
                Ok(Bucket::default())
            });
            state.buckets.insert(number, loaded.map_err(unwritten)?);
        }
        let Some(bucket) = state.buckets.get_mut(&number) else { return Ok(Outcome::Used) };
        if bucket.ids.contains(&id) {
            return Ok(Outcome::Used);
        }
        if bucket.ids.len() >= BUCKET_TOKENS {
            return Err(Problem::new(ProblemCode::Draining, "too many tokens were used within a minute; slow down"));
        }
        let written = bucket.append(&id);
        bucket.ids.insert(id);
        if let Err(error) = written {
            bucket.file = None;
            // Refused, the token stays used: nobody can tell how much of it was written.
            state.go_on_in_memory(&self.dir, error).map_err(unwritten)?;
        }
        Ok(Outcome::First)
    }
}

fn id(claims: &Claims) -> Option<Id> {
    URL_SAFE_NO_PAD.decode(&claims.jti).ok()?.try_into().ok()
}

fn unwritten(error: io::Error) -> Problem {
    let detail = if error.kind() == io::ErrorKind::StorageFull {
        "the disk of this node is full, so it takes no requests: free some space under its state directory"
    } else {
        "this node cannot write down which tokens were used, so it takes no requests; its log says why"
    };
    Problem::new(ProblemCode::Draining, detail).because(error)
}

impl State {
    fn forget(&mut self, current: i64, dir: &Path) {
        if current <= self.floor {
            return;
        }
        self.floor = current;
        let alive = self.buckets.split_off(&current);
        for number in std::mem::replace(&mut self.buckets, alive).into_keys() {
            if let Err(error) = fs::remove_file(file_of(dir, number)) {
                tracing::warn!(%error, "ids of tokens that nobody can use any more stay on the disk");
            }
        }
    }

    /// Makes the next process refuse whatever this one may have accepted, since `error` keeps it from writing that down.
    fn go_on_in_memory(&mut self, dir: &Path, error: io::Error) -> io::Result<()> {
        if self.in_memory {
            return Ok(());
        }
        let emptied = fs::OpenOptions::new().write(true).truncate(true).open(dir.join(BOOT_MARK));
        if let Err(second) = emptied {
            tracing::error!(error = %second, "the mark of used tokens cannot be emptied");
            return Err(error);
        }
        tracing::error!(%error, "used tokens are remembered in memory only: free some space under the state directory");
        self.in_memory = true;
        Ok(())
    }
}

impl Bucket {
    /// Opens the file and reads what is whole in it. A torn end was never acknowledged and is cut off.
    fn load(path: &Path) -> io::Result<Self> {
        let file = fs::OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut bytes = Vec::new();
        (&file).take((BUCKET_TOKENS * ID_BYTES) as u64).read_to_end(&mut bytes)?;
        let (whole, _torn) = bytes.as_chunks::<ID_BYTES>();
        let length = (whole.len() * ID_BYTES) as u64;
        file.set_len(length)?;
        Ok(Self { ids: whole.iter().copied().collect(), file: Some(file), length })
    }

    fn append(&mut self, id: &Id) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(id) {
            // What the next process reads has to be whole ids; it cuts a torn end off as well.
            let _ = file.set_len(self.length);
            return Err(error);
        }
        self.length += ID_BYTES as u64;
        Ok(())
    }
}

fn file_of(dir: &Path, number: i64) -> PathBuf {
    dir.join(format!("{number}.ids"))
}

fn bucket_number(path: &Path) -> Option<i64> {
    path.file_name()?.to_str()?.strip_suffix(".ids")?.parse().ok()
}

/// Whether ids may be missing in `dir`: the machine was started anew since, or they could not be written. A first start is
/// none of it: nothing was accepted.
fn may_be_incomplete(dir: &Path) -> io::Result<bool> {
    let current = fs::read_to_string(BOOT_ID)?;
    let path = dir.join(BOOT_MARK);
    let last = match fs::read_to_string(&path) {
        Ok(last) => Some(last),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let incomplete = last.as_ref().is_some_and(|last| *last != current);
    if last.as_ref() != Some(&current) {
        match write_mark(&path, &current) {
            Ok(()) => {}
            // The old mark stays and says the same to the next process.
            Err(error) if incomplete => tracing::warn!(%error, "the mark of used tokens stays as it is"),
            Err(error) => return Err(error),
        }
    }
    Ok(incomplete)
}

fn write_mark(path: &Path, boot: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(boot.as_bytes())?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis_const(1_800_000_000_000);

    fn claims(number: u128, lives_s: i64) -> Claims {
        Claims {
            sub: "op".to_owned(),
            aud: "scafo-node".to_owned(),
            iat: NOW.as_seconds(),
            exp: NOW.as_seconds() + lives_s,
            jti: URL_SAFE_NO_PAD.encode(number.to_be_bytes()),
        }
    }

    fn later(seconds: u64) -> Timestamp {
        NOW.after(std::time::Duration::from_secs(seconds))
    }

    #[test]
    fn of_fifty_parallel_uses_exactly_one_is_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let replay = Replay::open(dir.path(), NOW).unwrap();
        let first = std::thread::scope(|scope| {
            let uses: Vec<_> = (0..50).map(|_| scope.spawn(|| replay.accept(&claims(1, 60), NOW).unwrap())).collect();
            uses.into_iter().map(|use_| use_.join().unwrap()).filter(|o| *o == Outcome::First).count()
        });
        assert_eq!(first, 1);
    }

    #[test]
    fn a_used_token_is_remembered_across_a_restart_and_a_torn_write() {
        let dir = tempfile::tempdir().unwrap();
        let replay = Replay::open(dir.path(), NOW).unwrap();
        assert_eq!(replay.accept(&claims(1, 60), NOW).unwrap(), Outcome::First);
        drop(replay);
        let number = (NOW.as_seconds() + 60 + CLOCK_SKEW_S).div_euclid(BUCKET_S);
        let path = file_of(&dir.path().join("tokens"), number);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"torn").unwrap();
        let replay = Replay::open(dir.path(), later(1)).unwrap();
        assert_eq!(replay.accept(&claims(1, 60), later(1)).unwrap(), Outcome::Used);
        assert_eq!(replay.accept(&claims(2, 60), later(1)).unwrap(), Outcome::First);
        drop(replay);
        let replay = Replay::open(dir.path(), later(2)).unwrap();
        assert_eq!(replay.accept(&claims(2, 60), later(2)).unwrap(), Outcome::Used);
    }

    #[test]
    fn an_id_outlives_its_token_and_the_skew_and_then_goes() {
        let dir = tempfile::tempdir().unwrap();
        let replay = Replay::open(dir.path(), NOW).unwrap();
        assert_eq!(replay.accept(&claims(1, 60), NOW).unwrap(), Outcome::First);
        for seconds in [1, 60, 89] {
            assert_eq!(replay.accept(&claims(1, 60), later(seconds)).unwrap(), Outcome::Used, "{seconds}");
        }
        let files = || fs::read_dir(dir.path().join("tokens")).unwrap().count();
        assert_eq!(files(), 2);
        replay.accept(&claims(2, 600), later(300)).unwrap();
        assert_eq!(files(), 2, "the boot id and the newer bucket");
        // A clock that goes back does not bring a forgotten token back.
        assert_eq!(replay.accept(&claims(1, 60), NOW).unwrap(), Outcome::Used);
    }

    #[test]
    fn a_disk_that_takes_no_ids_closes_nothing_and_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = dir.path().join("tokens");
        let replay = Replay::open(dir.path(), NOW).unwrap();
        // A directory in the place of the file cannot be written to, whoever runs this.
        let number = (NOW.as_seconds() + 60 + CLOCK_SKEW_S).div_euclid(BUCKET_S);
        fs::create_dir(file_of(&tokens, number)).unwrap();
        assert_eq!(replay.accept(&claims(1, 60), NOW).unwrap(), Outcome::First);
        assert_eq!(replay.accept(&claims(1, 60), NOW).unwrap(), Outcome::Used);
        drop(replay);
        fs::remove_dir(file_of(&tokens, number)).unwrap();
        let replay = Replay::open(dir.path(), later(1)).unwrap();
        assert_eq!(
            replay.accept(&claims(1, 60), later(1)).unwrap(),
            Outcome::Used,
            "the next process does not know it"
        );
        let fresh = Claims { iat: NOW.as_seconds() + 1, ..claims(2, 60) };
        assert_eq!(replay.accept(&fresh, later(1)).unwrap(), Outcome::First);
    }

    #[test]
    fn after_a_new_boot_what_was_signed_before_the_start_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(Replay::open(dir.path(), NOW).unwrap());
        fs::write(dir.path().join("tokens/boot"), "another boot\n").unwrap();
        let replay = Replay::open(dir.path(), later(5)).unwrap();
        assert_eq!(replay.accept(&claims(1, 60), later(5)).unwrap(), Outcome::Used);
        let fresh = Claims { iat: NOW.as_seconds() + 5, ..claims(2, 60) };
        assert_eq!(replay.accept(&fresh, later(6)).unwrap(), Outcome::First);
    }
}
