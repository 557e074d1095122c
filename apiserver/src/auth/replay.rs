//! Single use: the ids of accepted tokens, for as long as a token could be accepted again.
//!
//! Ids lie in buckets of one minute, by when their token stops being acceptable (its `exp` and the clock skew). A bucket is
//! forgotten as a whole once its minute is over. Each bucket has a file that an id is written to before its token is
//! accepted, so that a crash of this process forgets nothing. The writes are not synchronised to the disk: what the
//! machine itself may lose with a power failure is covered by refusing, after a new boot, every token that may have been used
//! before it, for as long as such a one could be accepted. Its signer's clock may have been ahead by the skew: it may say that it
//! was signed so long after the boot. When the disk takes no more ids, the mark of the boot is emptied, which needs no space: the
//! ids are then in memory only, and the next process refuses alike what may have been used before it started. So a full disk
//! neither closes the API nor opens it to a second use. After a clock was set back by minutes or more, what was signed before is
//! refused, and no more: ids of the time that comes again are gone, and refusing all of that time would close the API for as long.
//! What another node accepted is not known here: a token is single-use on each node.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::time::Timestamp;
use scafo_core::token::{CLOCK_SKEW_S, Claims, MAX_LIFETIME_S};
use scafo_proto::boot::Boot;

/// How long after now a token that is accepted now can be accepted at the most: it may be signed up to the skew ahead, and is
/// taken for as long after its end.
const ACCEPTABLE: Duration = Duration::from_secs((MAX_LIFETIME_S + 2 * CLOCK_SKEW_S).unsigned_abs());
/// Width of a bucket in seconds.
const BUCKET_S: i64 = 60;
/// A clock that goes back by more buckets than these was set: one that is only corrected goes on within what is acceptable at once.
const BACK: i64 = 3;
/// Tokens in one bucket: a million a minute. At most four buckets are alive, since a token is acceptable for at most two
/// minutes from now; full they take about 120 MiB.
const BUCKET_TOKENS: usize = 1_000_000;
const ID_BYTES: usize = 16;
/// Extensions of the files: with the ids of a bucket, and the empty one with the number of the last that was forgotten.
const IDS: &str = "ids";
const PAST: &str = "past";
const BOOT_MARK: &str = "boot";

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
    state: Mutex<State>,
}

/// Tokens that were signed earlier may have been accepted, and the record of it is not whole.
struct Lost {
    /// The last second in which such a token may say that it was signed.
    signed_until_s: i64,
    /// From then on none of them is acceptable any more.
    until: Instant,
}

impl Lost {
    /// The record of what was accepted up to `end_s` may be lost. A clock that was ahead may have signed it.
    fn up_to(end_s: i64, mono: Instant) -> Self {
        Self { signed_until_s: end_s.saturating_add(CLOCK_SKEW_S), until: mono + ACCEPTABLE }
    }

    /// The clock was set back to `now`. What is signed from now on is taken at once.
    fn set_back(now: Timestamp, mono: Instant) -> Self {
        Self { signed_until_s: now.as_seconds().saturating_sub(1), until: mono + ACCEPTABLE }
    }
}

#[derive(Default)]
struct State {
    buckets: BTreeMap<i64, Bucket>,
    /// Every bucket below was forgotten or never had an id, and takes none even if the clock goes back a little.
    floor: i64,
    lost: Option<Lost>,
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
    /// Reads back what the last process accepted. The machine is `up` for so long.
    pub(super) fn open(dir: &Path, now: Timestamp, mono: Instant, up: Duration) -> io::Result<Self> {
        let dir = dir.join("tokens");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let lost = may_be_incomplete(&dir)?.map(|since| Lost::up_to(since.end_s(now, up), mono));
        let mut state = State { floor: i64::MIN, lost, ..State::default() };
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if let Some(number) = number_in(&path, IDS) {
                state.buckets.insert(number, Bucket::load(&path)?);
            } else if let Some(number) = number_in(&path, PAST) {
                state.floor = state.floor.max(number.saturating_add(1));
            }
        }
        state.advance(now, mono, &dir);
        Ok(Self { dir, state: Mutex::new(state) })
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
    pub(super) fn accept(&self, claims: &Claims, now: Timestamp, mono: Instant) -> Result<Outcome, Problem> {
        let Some(id) = id(claims) else { return Ok(Outcome::Used) };
        let number = bucket_of(claims.exp.saturating_add(CLOCK_SKEW_S));
        // One write of 16 bytes to the page cache happens under this lock. Nothing in it panics.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(now, mono, &self.dir);
        let lost = state.lost.as_ref().is_some_and(|lost| claims.iat <= lost.signed_until_s && mono < lost.until);
        if lost || number < state.floor {
            return Ok(Outcome::Used);
        }
        if !state.buckets.contains_key(&number) {
            let loaded = Bucket::load(&file_of(&self.dir, number, IDS)).or_else(|error| {
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
    /// Goes on to this time, or back to it.
    fn advance(&mut self, now: Timestamp, mono: Instant, dir: &Path) {
        let current = bucket_of(now.as_seconds());
        if self.floor.saturating_sub(current) > BACK {
            tracing::warn!("the clock was set back: tokens that were signed before are refused for two minutes");
            remove(std::iter::once(mark(dir, self.floor)), Ok(()));
            self.floor = i64::MIN;
            self.lost = Some(Lost::set_back(now, mono));
        }
        self.forget(current, dir);
    }

    /// Forgets the buckets before `current`. An empty file has the number of the last of them: by it the next process knows how
    /// far this one came.
    fn forget(&mut self, current: i64, dir: &Path) {
        let alive = self.buckets.split_off(&current);
        let past = std::mem::replace(&mut self.buckets, alive);
        let Some(last) = past.keys().next_back().copied() else { return };
        let floor = self.floor.max(last.saturating_add(1));
        let marked = File::create(mark(dir, floor)).map(drop);
        let before = (floor != self.floor).then(|| mark(dir, self.floor));
        remove(past.into_keys().map(|number| file_of(dir, number, IDS)).chain(before), marked);
        self.floor = floor;
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

fn bucket_of(seconds: i64) -> i64 {
    seconds.div_euclid(BUCKET_S)
}

fn file_of(dir: &Path, number: i64, extension: &str) -> PathBuf {
    dir.join(format!("{number}.{extension}"))
}

/// The file that says how far this process came.
fn mark(dir: &Path, floor: i64) -> PathBuf {
    file_of(dir, floor.saturating_sub(1), PAST)
}

/// Removes files that nobody needs any more, and says so when something of that went wrong.
fn remove(paths: impl Iterator<Item = PathBuf>, before: io::Result<()>) {
    let removed = paths.map(|path| match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    });
    if let Err(error) = removed.fold(before, Result::and) {
        tracing::warn!(%error, "ids of tokens that nobody can use any more stay on the disk");
    }
}

fn number_in(path: &Path, extension: &str) -> Option<i64> {
    path.extension().filter(|its| *its == extension)?;
    path.file_stem()?.to_str()?.parse().ok()
}

/// Since when every id is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// The start of the machine.
    Boot,
    /// The start of this process.
    Start,
}

impl Since {
    /// The time of it, in whole seconds and never too early.
    fn end_s(self, now: Timestamp, up: Duration) -> i64 {
        match self {
            Self::Boot => now.as_seconds().saturating_sub_unsigned(up.as_secs()),
            Self::Start => now.as_seconds(),
        }
    }
}

/// Whether ids may be missing in `dir`: the machine was started anew since, or they could not be written. A first start is
/// none of it: nothing was accepted.
fn may_be_incomplete(dir: &Path) -> io::Result<Option<Since>> {
    let current = Boot::current()?;
    let path = dir.join(BOOT_MARK);
    let last = match fs::read_to_string(&path) {
        Ok(last) => Some(last),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let same = last.as_deref().map(str::trim) == Some(current.as_str());
    let incomplete = last.filter(|_| !same).map(|last| if last.is_empty() { Since::Start } else { Since::Boot });
    if !same {
        match write_mark(&path, &current) {
            Ok(()) => {}
            // The old mark stays and says the same to the next process.
            Err(error) if incomplete.is_some() => tracing::warn!(%error, "the mark of used tokens stays as it is"),
            Err(error) => return Err(error),
        }
    }
    Ok(incomplete)
}

fn write_mark(path: &Path, boot: &Boot) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(boot.as_str().as_bytes())?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

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

    /// Signed so long after `NOW`, for a minute.
    fn signed(number: u128, at_s: u64) -> Claims {
        let claims = claims(number, 60);
        Claims { iat: claims.iat + at_s.cast_signed(), exp: claims.exp + at_s.cast_signed(), ..claims }
    }

    /// The start of the machine, by the clock that nobody turns.
    static BOOT: LazyLock<Instant> = LazyLock::new(Instant::now);

    /// The machine is up since `NOW`.
    fn open(dir: &tempfile::TempDir, after_s: u64) -> Replay {
        let after = Duration::from_secs(after_s);
        Replay::open(dir.path(), NOW.after(after), *BOOT + after, after).unwrap()
    }

    /// With both clocks right.
    fn accept(replay: &Replay, claims: &Claims, after_s: u64) -> Outcome {
        let after = Duration::from_secs(after_s);
        replay.accept(claims, NOW.after(after), *BOOT + after).unwrap()
    }

    #[test]
    fn of_fifty_parallel_uses_exactly_one_is_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let replay = open(&dir, 0);
        let first = std::thread::scope(|scope| {
            let uses: Vec<_> = (0..50).map(|_| scope.spawn(|| accept(&replay, &claims(1, 60), 0))).collect();
            uses.into_iter().map(|use_| use_.join().unwrap()).filter(|o| *o == Outcome::First).count()
        });
        assert_eq!(first, 1);
    }

    #[test]
    fn a_used_token_is_remembered_across_a_restart_and_a_torn_write() {
        let dir = tempfile::tempdir().unwrap();
        let replay = open(&dir, 0);
        assert_eq!(accept(&replay, &claims(1, 60), 0), Outcome::First);
        drop(replay);
        let number = (NOW.as_seconds() + 60 + CLOCK_SKEW_S).div_euclid(BUCKET_S);
        let path = file_of(&dir.path().join("tokens"), number, IDS);
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"torn").unwrap();
        let replay = open(&dir, 1);
        assert_eq!(accept(&replay, &claims(1, 60), 1), Outcome::Used);
        assert_eq!(accept(&replay, &claims(2, 60), 1), Outcome::First);
        drop(replay);
        let replay = open(&dir, 2);
        assert_eq!(accept(&replay, &claims(2, 60), 2), Outcome::Used);
    }

    #[test]
    fn an_id_outlives_its_token_and_the_skew_and_then_goes() {
        let dir = tempfile::tempdir().unwrap();
        let replay = open(&dir, 0);
        assert_eq!(accept(&replay, &claims(1, 60), 0), Outcome::First);
        for seconds in [1, 60, 89] {
            assert_eq!(accept(&replay, &claims(1, 60), seconds), Outcome::Used, "{seconds}");
        }
        let files = || fs::read_dir(dir.path().join("tokens")).unwrap().count();
        assert_eq!(files(), 2);
        accept(&replay, &claims(2, 600), 300);
        assert_eq!(files(), 3, "the boot id, the newer bucket, and how far it came");
        // A clock that goes back does not bring a forgotten token back, in this process or the next.
        assert_eq!(accept(&replay, &claims(1, 60), 0), Outcome::Used);
        drop(replay);
        assert_eq!(accept(&open(&dir, 0), &claims(1, 60), 0), Outcome::Used);
    }

    #[test]
    fn a_clock_that_is_set_back_closes_nothing_and_what_was_signed_before_is_refused() {
        const AHEAD: u64 = 2 * 60 * 60;
        let dir = tempfile::tempdir().unwrap();
        let replay = open(&dir, 0);
        assert_eq!(accept(&replay, &signed(1, 0), 0), Outcome::First);
        // It runs on long enough for what was accepted then to be forgotten, and is set right.
        for number in [0, 200, 400] {
            let wrong = NOW.after(Duration::from_secs(AHEAD + number));
            let token = signed(u128::from(10 + number), AHEAD + number);
            assert_eq!(replay.accept(&token, wrong, *BOOT + Duration::from_secs(1)).unwrap(), Outcome::First);
        }
        assert_eq!(accept(&replay, &signed(1, 0), 2), Outcome::Used, "that it was used was forgotten meanwhile");
        assert_eq!(accept(&replay, &signed(2, 2), 2), Outcome::First);
        assert_eq!(accept(&replay, &signed(3, 120), 130), Outcome::First);
        assert_eq!(accept(&replay, &signed(3, 120), 131), Outcome::Used);
        drop(replay);
        assert_eq!(accept(&open(&dir, 140), &signed(4, 140), 140), Outcome::First, "after a new start, too");

        // The same from the start of a machine on.
        fs::write(dir.path().join("tokens/boot"), "another boot\n").unwrap();
        let wrong = NOW.after(Duration::from_secs(AHEAD));
        let up = Duration::from_secs(150);
        let replay = Replay::open(dir.path(), wrong, *BOOT + up, up).unwrap();
        assert_eq!(accept(&replay, &signed(5, 160), 160), Outcome::Used, "nobody knows that the clock was wrong");
        assert_eq!(accept(&replay, &signed(6, 300), 300), Outcome::First);
    }

    #[test]
    fn a_million_tokens_a_minute_are_remembered_and_more_are_refused_for_that_minute() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(&dir, 0));
        let number = (NOW.as_seconds() + 60 + CLOCK_SKEW_S).div_euclid(BUCKET_S);
        let known: Vec<u8> = (0..1_000_000_u128).flat_map(u128::to_be_bytes).collect();
        fs::write(file_of(&dir.path().join("tokens"), number, IDS), known).unwrap();
        let replay = open(&dir, 0);
        assert_eq!(replay.remembered(), 1_000_000);
        for used in [0, 999_999] {
            assert_eq!(accept(&replay, &claims(used, 60), 0), Outcome::Used);
        }
        for _ in 0..2 {
            // It is not used by that: it may come again when there is room.
            let refused = replay.accept(&claims(1_000_000, 60), NOW, *BOOT).unwrap_err();
            assert_eq!(refused.code, ProblemCode::Draining);
        }
        assert_eq!(accept(&replay, &claims(1_000_000, 60 + BUCKET_S), 0), Outcome::First, "of the next minute");
        assert_eq!(replay.remembered(), 1_000_001);
    }

    #[test]
    fn a_disk_that_takes_no_ids_closes_nothing_and_opens_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = dir.path().join("tokens");
        let replay = open(&dir, 0);
        // A directory in the place of the file cannot be written to, whoever runs this.
        let number = (NOW.as_seconds() + 60 + CLOCK_SKEW_S).div_euclid(BUCKET_S);
        fs::create_dir(file_of(&tokens, number, IDS)).unwrap();
        assert_eq!(accept(&replay, &claims(1, 60), 0), Outcome::First);
        assert_eq!(accept(&replay, &claims(1, 60), 0), Outcome::Used);
        drop(replay);
        fs::remove_dir(file_of(&tokens, number, IDS)).unwrap();
        let replay = open(&dir, 1);
        assert_eq!(accept(&replay, &claims(1, 60), 1), Outcome::Used, "the next process does not know it");
        assert_eq!(accept(&replay, &signed(2, 31), 1), Outcome::Used, "it may have come from a clock that is ahead");
        assert_eq!(accept(&replay, &signed(3, 32), 2), Outcome::First);
    }

    #[test]
    fn after_a_new_boot_what_may_have_been_used_before_it_is_refused_and_the_rest_is_not() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(&dir, 0));
        let next = |after_s| {
            fs::write(dir.path().join("tokens/boot"), "another boot\n").unwrap();
            open(&dir, after_s)
        };
        let replay = next(5);
        assert_eq!(accept(&replay, &signed(1, 0), 5), Outcome::Used);
        // Right before the boot it was taken already, signed by a clock that was ahead by the whole skew.
        assert_eq!(accept(&replay, &signed(2, 30), 6), Outcome::Used);
        assert_eq!(accept(&replay, &signed(3, 31), 6), Outcome::First);
        drop(replay);
        assert_eq!(accept(&next(40), &signed(4, 40), 40), Outcome::First, "a start long after the boot costs nothing");
    }

    #[test]
    fn a_first_start_takes_every_token() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(accept(&open(&dir, 0), &claims(1, 60), 0), Outcome::First);
    }
}
