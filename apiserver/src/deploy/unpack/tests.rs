//! Hostile and honest archives.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use ::tar::{Builder, EntryType, Header};

use super::*;

const LIMITS: Limits = Limits { bytes: 1 << 20, entries: 100 };

/// What goes into an archive.
#[derive(Clone, Copy)]
enum Item<'a> {
    File(&'a str, &'a [u8], u32),
    Directory(&'a str),
    Link(&'a str, &'a str),
    Special(&'a str, EntryType),
}
use Item::{Directory, File as F, Link, Special};

fn header(name: &str, kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    // Not through the checked setter: these names are what is tested.
    let bytes = name.as_bytes();
    header.as_old_mut().name[..bytes.len()].copy_from_slice(bytes);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header
}

fn tar(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for item in items {
        let (mut header, data): (Header, &[u8]) = match item {
            F(name, data, mode) => (header(name, EntryType::Regular, data.len() as u64, *mode), data),
            Directory(name) => (header(name, EntryType::Directory, 0, 0o755), b""),
            Link(name, target) => {
                let mut header = header(name, EntryType::Symlink, 0, 0o777);
                header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
                (header, b"")
            }
            Special(name, kind) => (header(name, *kind, 0, 0o644), b""),
        };
        header.set_cksum();
        builder.append(&header, data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn try_unpack(archive: &[u8], limits: Limits) -> (tempfile::TempDir, Result<u64, Problem>) {
    let dir = tempfile::tempdir().unwrap();
    let artifact = dir.path().join("artifact");
    fs::write(&artifact, archive).unwrap();
    let outcome = unpack(&artifact, &dir.path().join("tree"), limits, &Stop::after(Duration::from_hours(1)));
    (dir, outcome)
}

/// Unpacks and expects a refusal whose detail holds `part`; nothing may stand outside of the tree.
fn refuse(archive: &[u8], code: ProblemCode, part: &str) {
    let (dir, outcome) = try_unpack(archive, LIMITS);
    let problem = outcome.expect_err(part);
    assert_eq!(problem.code, code, "{problem:?}");
    assert!(problem.detail.contains(part), "{} does not hold {part}", problem.detail);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the artifact and the tree");
}

const PROJECT: [Item<'static>; 4] = [
    F("wrangler.jsonc", b"{}", 0o644),
    Directory("src"),
    F("./src/index.js", b"export default {}", 0o4755),
    F("deep/er/data", b"", 0o600),
];

#[test]
fn an_honest_project_comes_out_of_every_format() {
    let plain = tar(&PROJECT);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&plain).unwrap();
    let zst = zstd::encode_all(plain.as_slice(), 1).unwrap();
    for archive in [plain, gz.finish().unwrap(), zst, zip(&PROJECT)] {
        let (dir, outcome) = try_unpack(&archive, LIMITS);
        assert_eq!(outcome.unwrap(), 19);
        let tree = dir.path().join("tree");
        assert_eq!(configuration(&tree).unwrap(), tree.join("wrangler.jsonc"));
        assert_eq!(fs::read_to_string(tree.join("src/index.js")).unwrap(), "export default {}");
        let mode = fs::metadata(tree.join("src/index.js")).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode & 0o7000, 0, "set-uid is gone");
        assert_ne!(mode & 0o100, 0, "and it can still be executed");
        assert!(tree.join("deep/er/data").is_file());
    }
}

fn zip(items: &[Item<'_>]) -> Vec<u8> {
    use ::zip::write::SimpleFileOptions;
    let mut writer = ::zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    for item in items {
        match item {
            F(name, data, mode) => {
                writer.start_file(*name, SimpleFileOptions::default().unix_permissions(*mode)).unwrap();
                writer.write_all(data).unwrap();
            }
            Directory(name) => writer.add_directory(*name, SimpleFileOptions::default()).unwrap(),
            Link(name, target) => writer.add_symlink(*name, *target, SimpleFileOptions::default()).unwrap(),
            Special(..) => panic!("the writer has no such entries"),
        }
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn no_name_leads_out_of_the_tree() {
    for (name, part) in [
        ("/etc/passwd", "absolute"),
        ("../evil", ".."),
        ("a/../../evil", ".."),
        ("a\\..\\evil", "backslash"),
        ("a\u{1}b", "no text"),
        ("./", "names no file"),
    ] {
        let kind = if name == "./" { F(name, b"x", 0o644) } else { F(name, b"", 0o644) };
        refuse(&tar(&[kind]), ProblemCode::InvalidInput, part);
    }
    for (name, part) in [("/etc/passwd", "absolute"), ("../evil", ".."), ("a\\..\\evil", "backslash")] {
        refuse(&zip(&[F(name, b"", 0o644)]), ProblemCode::InvalidInput, part);
    }
}

#[test]
fn a_link_that_leaves_the_tree_is_refused_by_name() {
    let out = "leads out of the project";
    for items in [
        &[Link("l", "/etc/passwd")][..],
        &[Link("l", "../x")],
        &[Link("a/l", "../../x")],
        // Only walking it shows that `d/up` is the root and its parent is outside.
        &[Link("d/up", "../d2/.."), Link("d2/x", "../d/up/../x")],
        &[Link("a", "b"), Link("b", "c/../../x"), F("c/f", b"", 0o644)],
    ] {
        refuse(&tar(items), ProblemCode::InvalidInput, out);
        refuse(&zip(items), ProblemCode::InvalidInput, out);
    }
    refuse(&tar(&[Link("secret-link", "../x")]), ProblemCode::InvalidInput, "secret-link");
    refuse(&tar(&[Link("a", "b"), Link("b", "a")]), ProblemCode::InvalidInput, "circle");
    refuse(&tar(&[Link("a", "")]), ProblemCode::InvalidInput, "no readable target");
}

#[test]
fn links_inside_the_tree_are_kept_even_dangling() {
    let pnpm = [
        F("node_modules/.pnpm/left@1.0.0/node_modules/left/index.js", b"1", 0o644),
        Link("node_modules/left", ".pnpm/left@1.0.0/node_modules/left"),
        Link("packages/app/node_modules/left", "../../../node_modules/left"),
        Link("dangling", "nowhere/at/all"),
        Link("root", "."),
    ];
    for archive in [tar(&pnpm), zip(&pnpm)] {
        let (dir, outcome) = try_unpack(&archive, LIMITS);
        outcome.unwrap();
        let tree = dir.path().join("tree");
        assert_eq!(fs::read_to_string(tree.join("packages/app/node_modules/left/index.js")).unwrap(), "1");
        assert_eq!(fs::read_link(tree.join("dangling")).unwrap(), Path::new("nowhere/at/all"));
    }
}

#[test]
fn nothing_is_written_through_a_link() {
    for items in [[Link("d", "."), F("d/f", b"x", 0o644)], [F("d/f", b"x", 0o644), Link("d", ".")]] {
        refuse(&tar(&items), ProblemCode::InvalidInput, "same name");
    }
}

#[test]
fn what_no_project_needs_is_refused_by_name() {
    for (kind, part) in [
        (EntryType::Link, "hard link"),
        (EntryType::Char, "device"),
        (EntryType::Block, "device"),
        (EntryType::Fifo, "FIFO"),
        (EntryType::GNUSparse, "sparse"),
        (EntryType::new(b'Z'), "not known"),
    ] {
        refuse(&tar(&[Special("odd", kind)]), ProblemCode::InvalidInput, part);
        refuse(&tar(&[Special("odd", kind)]), ProblemCode::InvalidInput, "\"odd\"");
    }
}

#[test]
fn a_name_stands_once_whatever_its_case() {
    for items in [
        &[F("a", b"", 0o644), F("a", b"", 0o644)][..],
        &[F("a", b"", 0o644), F("./a", b"", 0o644)],
        &[F("Readme", b"", 0o644), F("README", b"", 0o644)],
        &[F("Src/a", b"", 0o644), F("src/b", b"", 0o644)],
        &[F("a", b"", 0o644), F("a/b", b"", 0o644)],
        &[F("a/b", b"", 0o644), F("a", b"", 0o644)],
    ] {
        refuse(&tar(items), ProblemCode::InvalidInput, "same name");
    }
    let twice = [Directory("d"), Directory("d/"), F("d/f", b"", 0o644)];
    assert!(try_unpack(&tar(&twice), LIMITS).1.is_ok(), "a directory may be named again");
}

#[test]
fn bytes_entries_and_names_are_bounded() {
    let zeros = vec![0; 3 << 20];
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    bomb.write_all(&tar(&[F("zeros", &zeros, 0o644)])).unwrap();
    for archive in [bomb.finish().unwrap(), zip(&[F("zeros", &zeros, 0o644)])] {
        refuse(&archive, ProblemCode::ResourceLimit, "artifactBytes");
    }
    let names: Vec<String> = (0..101).map(|i| format!("f{i}")).collect();
    let many: Vec<Item<'_>> = names.iter().map(|name| F(name, b"", 0o644)).collect();
    refuse(&tar(&many), ProblemCode::ResourceLimit, "archiveEntries");
    refuse(&zip(&many), ProblemCode::ResourceLimit, "archiveEntries");
    let implied: Vec<String> = (0..3).map(|i| format!("{i}/{}f", "d/".repeat(40))).collect();
    let implied: Vec<Item<'_>> = implied.iter().map(|name| F(name, b"", 0o644)).collect();
    refuse(&tar(&implied), ProblemCode::ResourceLimit, "archiveEntries");
    let again = vec![Directory("d"); 401];
    refuse(&tar(&again), ProblemCode::ResourceLimit, "archiveEntries");
    let mut idle = Builder::new(Vec::new());
    for _ in 0..401 {
        let mut global = header("pax", EntryType::XGlobalHeader, 0, 0o644);
        global.set_cksum();
        idle.append(&global, io::empty()).unwrap();
    }
    refuse(&idle.into_inner().unwrap(), ProblemCode::ResourceLimit, "archiveEntries");
    let deep = "d/".repeat(65) + "f";
    let mut long = Builder::new(Vec::new());
    let mut plain = header("x", EntryType::Regular, 0, 0o644);
    long.append_data(&mut plain, &deep, io::empty()).unwrap();
    refuse(&long.into_inner().unwrap(), ProblemCode::InvalidInput, "too deep");
}

#[test]
fn long_names_come_through_and_longer_ones_do_not() {
    let name = format!("{}/{}", "a".repeat(150), "b".repeat(200));
    let mut builder = Builder::new(Vec::new());
    let mut plain = header("x", EntryType::Regular, 1, 0o644);
    builder.append_data(&mut plain, &name, b"1".as_slice()).unwrap();
    let (dir, outcome) = try_unpack(&builder.into_inner().unwrap(), LIMITS);
    outcome.unwrap();
    assert!(dir.path().join("tree").join(&name).is_file());

    let mut builder = Builder::new(Vec::new());
    let mut huge = header("././@LongLink", EntryType::GNULongName, 100_000, 0o644);
    huge.set_cksum();
    builder.append(&huge, vec![b'a'; 100_000].as_slice()).unwrap();
    refuse(&builder.into_inner().unwrap(), ProblemCode::InvalidInput, "too long");
}

#[test]
fn pax_names_count_and_pax_sparse_files_and_sizes_are_refused() {
    let with = |pairs: &[(&str, &[u8])]| {
        let mut builder = Builder::new(Vec::new());
        builder.append_pax_extensions(pairs.iter().copied()).unwrap();
        let mut plain = header("short", EntryType::Regular, 1, 0o644);
        plain.set_cksum();
        builder.append(&plain, b"1".as_slice()).unwrap();
        builder.into_inner().unwrap()
    };
    let (dir, outcome) = try_unpack(&with(&[("path", b"from/pax"), ("size", b"1")]), LIMITS);
    outcome.unwrap();
    assert!(dir.path().join("tree/from/pax").is_file());
    refuse(&with(&[("path", b"../evil")]), ProblemCode::InvalidInput, "..");
    refuse(&with(&[("size", b"7")]), ProblemCode::InvalidInput, "two sizes");
    refuse(&with(&[("GNU.sparse.major", b"1")]), ProblemCode::InvalidInput, "sparse");
}

#[test]
fn what_is_damaged_or_no_archive_is_refused() {
    refuse(b"hello", ProblemCode::InvalidInput, "neither tar");
    refuse(b"", ProblemCode::InvalidInput, "neither tar");
    let whole = tar(&[F("f", &[7; 2000], 0o644)]);
    refuse(&whole[..1024], ProblemCode::InvalidInput, "middle of a file");
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&whole).unwrap();
    let gz = gz.finish().unwrap();
    refuse(&gz[..gz.len() / 2], ProblemCode::InvalidInput, "damaged");
    let mut wrong = whole;
    wrong[0] ^= 1;
    refuse(&wrong, ProblemCode::InvalidInput, "checksum");
    refuse(b"PK\x03\x04nothing", ProblemCode::InvalidInput, "cannot be read");
}

#[test]
fn the_configuration_is_looked_for_at_the_root_jsonc_first() {
    for (names, found) in [
        (&["wrangler.json", "wrangler.jsonc"][..], Some("wrangler.jsonc")),
        (&["wrangler.json"], Some("wrangler.json")),
        (&["wrangler.toml"], None),
        (&["app/wrangler.jsonc"], None),
    ] {
        let items: Vec<Item<'_>> = names.iter().map(|name| F(name, b"{}", 0o644)).collect();
        let (dir, outcome) = try_unpack(&tar(&items), LIMITS);
        outcome.unwrap();
        let tree = dir.path().join("tree");
        match found {
            Some(name) => assert_eq!(configuration(&tree).unwrap(), tree.join(name)),
            None => {
                let problem = configuration(&tree).unwrap_err();
                assert_eq!(problem.code, ProblemCode::InvalidInput);
                assert!(problem.detail.contains("wrangler.jsonc") && problem.detail.contains("wrangler.json`"));
            }
        }
    }
}

#[test]
fn a_told_stop_is_heard_and_so_is_the_deadline() {
    let stop = Stop::after(Duration::from_hours(1));
    drop(stop.clone().on_drop());
    let dir = tempfile::tempdir().unwrap();
    let artifact = dir.path().join("artifact");
    fs::write(&artifact, tar(&PROJECT)).unwrap();
    let outcome = unpack(&artifact, &dir.path().join("tree"), LIMITS, &stop);
    assert_eq!(outcome.unwrap_err().code, ProblemCode::Draining);
    let outcome = unpack(&artifact, &dir.path().join("tree"), LIMITS, &Stop::after(Duration::ZERO));
    assert_eq!(outcome.unwrap_err().code, ProblemCode::DeployTimeout);
}

mod properties {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz;

    /// Paths and targets from few names, so that they meet, with every kind of step.
    fn path() -> impl Strategy<Value = String> {
        let step = prop::sample::select(vec!["a", "b", "A", "c", "..", ".", ""]);
        prop::collection::vec(step, 1..5).prop_map(|steps| steps.join("/"))
    }

    #[derive(Debug, Clone)]
    enum Made {
        File(String),
        Directory(String),
        Link(String, String),
    }

    fn made() -> impl Strategy<Value = Made> {
        prop_oneof![
            path().prop_map(Made::File),
            path().prop_map(Made::Directory),
            (path(), path()).prop_map(|(path, target)| Made::Link(path, target)),
        ]
    }

    /// Everything that can be reached from the tree is in it.
    fn assert_inside(dir: &Path) {
        let root = dir.join("tree").canonicalize().unwrap();
        let mut left = vec![root.clone()];
        while let Some(place) = left.pop() {
            for entry in fs::read_dir(place).unwrap() {
                let entry = entry.unwrap();
                if let Ok(real) = entry.path().canonicalize() {
                    assert!(real.starts_with(&root), "{real:?}");
                }
                if entry.file_type().unwrap().is_dir() {
                    left.push(entry.path());
                }
            }
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2, "the artifact and the tree");
    }

    fn archive(made: &[Made]) -> Vec<u8> {
        let items: Vec<Item<'_>> = made
            .iter()
            .map(|made| match made {
                Made::File(path) => F(path, b"x", 0o644),
                Made::Directory(path) => Directory(path),
                Made::Link(path, target) => Link(path, target),
            })
            .collect();
        tar(&items)
    }

    #[test]
    fn whatever_an_archive_holds_nothing_leaves_the_tree() {
        fuzz::holds(256, &prop::collection::vec(made(), 1..8), |made| {
            let (dir, _) = try_unpack(&archive(&made), LIMITS);
            assert_inside(dir.path());
            Ok(())
        });
    }

    #[test]
    fn links_alone_never_lead_out() {
        fuzz::holds(256, &prop::collection::vec(("[abc]", path()), 1..6), |links| {
            let made: Vec<_> = links.into_iter().map(|(name, target)| Made::Link(name, target)).collect();
            let (dir, _) = try_unpack(&archive(&made), LIMITS);
            assert_inside(dir.path());
            Ok(())
        });
    }

    #[test]
    fn a_damaged_archive_is_an_answer_and_no_panic() {
        let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
        fuzz::holds(256, &(any::<bool>(), changes, any::<prop::sample::Index>()), |(zipped, changes, cut)| {
            let mut bytes = if zipped { zip(&PROJECT) } else { tar(&PROJECT) };
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len()).max(bytes.len() / 2));
            let (dir, _) = try_unpack(&bytes, LIMITS);
            assert_inside(dir.path());
            Ok(())
        });
    }

    #[test]
    fn bytes_that_only_begin_like_an_archive_are_an_answer_and_no_panic() {
        let magic = prop::sample::select(vec![
            &b""[..],
            b"PK\x03\x04",
            b"PK\x05\x06",
            b"\x1f\x8b\x08\x00",
            b"\x28\xb5\x2f\xfd",
        ]);
        fuzz::holds(256, &(magic, prop::collection::vec(any::<u8>(), 0..1500)), |(magic, rest)| {
            let (dir, _) = try_unpack(&[magic, &rest].concat(), LIMITS);
            assert_inside(dir.path());
            Ok(())
        });
    }

    /// Pieces of names, sizes and kinds.
    const WORDS: [&str; 18] = [
        "../",
        "/",
        "./",
        "..",
        "\\",
        "\0",
        "wrangler.json",
        "00000000000\0",
        "77777777777\0",
        "00000001000\0",
        "ustar\0",
        "0",
        "1",
        "2",
        "5",
        "L",
        "x",
        "PK\u{1}\u{2}",
    ];

    /// Makes the sums of all blocks right that begin as headers do, so that a change is looked at and not only found damaged.
    fn with_sums(mut bytes: Vec<u8>) -> Vec<u8> {
        for block in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        bytes
    }

    #[test]
    fn what_became_of_an_archive_never_leaves_the_tree() {
        fuzz::holds(256, &(fuzz::mutated("archive", &WORDS), 0..4_u8), |(input, form)| {
            let input = if input.starts_with(b"PK") { input } else { with_sums(input) };
            let archive = match form {
                0 => zstd::encode_all(input.as_slice(), 1).unwrap(),
                1 => {
                    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                    gz.write_all(&input).unwrap();
                    gz.finish().unwrap()
                }
                _ => input,
            };
            let (dir, outcome) = try_unpack(&archive, LIMITS);
            assert_inside(dir.path());
            if let Ok(bytes) = outcome {
                prop_assert!(bytes <= LIMITS.bytes);
            }
            Ok(())
        });
        let honest = |archive: &Vec<u8>| try_unpack(archive, LIMITS).1.is_ok();
        assert!(fuzz::corpus("archive").iter().filter(|archive| honest(archive)).count() >= 4);
    }
}
