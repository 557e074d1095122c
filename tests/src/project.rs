//! Worker projects to deploy.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A project of a test's own, removed when it is dropped.
pub struct Project(TempDir);

impl Project {
    /// A project with these files (path, content).
    ///
    /// # Panics
    /// When the files cannot be written.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let project = Self(TempDir::new().expect("a temporary directory"));
        for (path, content) in files {
            project.write(path, content);
        }
        project
    }

    /// A Worker called `name` that answers every request with `answer`.
    pub fn answering(name: &str, answer: &str) -> Self {
        let config = format!(r#"{{ "name": "{name}", "main": "index.js", "compatibility_date": "2026-01-01" }}"#);
        let code = format!("export default {{ fetch() {{ return new Response({answer:?}); }} }};\n");
        Self::new(&[("wrangler.jsonc", &config), ("index.js", &code)])
    }

    /// Writes or replaces one file.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, path: &str, content: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below the project")).expect("a directory");
        std::fs::write(path, content).expect("a file");
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A project of `examples/`.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

/// The files of a directory as an artifact.
///
/// # Panics
/// When they cannot be read.
pub fn pack(directory: &Path) -> Vec<u8> {
    let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    archive.append_dir_all(".", directory).expect("readable files");
    archive.into_inner().and_then(flate2::write::GzEncoder::finish).expect("memory takes everything")
}

/// A file of the development runtime's npm packages.
pub fn tool(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/node_modules").join(path)
}
