//! What this daemon keeps on its own disk: small JSON documents, replaced as a whole or not at all.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::fs;
use tokio::io::AsyncWriteExt as _;

/// Reads a document. One that is missing is `None`; so is one that cannot be parsed, with a line in the log: it is local
/// memory, and what it remembers can be learned again from the bucket, only more carefully.
///
/// # Errors
/// When it is there and cannot be read.
pub(crate) async fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let text = match fs::read(path).await {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match serde_json::from_slice(&text) {
        Ok(document) => Ok(Some(document)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a state file cannot be parsed and is left aside");
            Ok(None)
        }
    }
}

/// Replaces a document: written beside, flushed to the disk, renamed into place. Readable by this user only.
///
/// # Errors
/// Those of the file system; the old document stays then.
pub(crate) async fn write<T: Serialize>(path: &Path, document: &T) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(document)?;
    let beside = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside).await?;
    file.write_all(&text).await?;
    file.sync_all().await?;
    drop(file);
    fs::rename(&beside, path).await?;
    // The rename itself has to reach the disk too.
    if let Some(dir) = path.parent() {
        fs::File::open(dir).await?.sync_all().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_document_is_replaced_as_a_whole_and_garbage_is_no_document() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        assert_eq!(read::<Vec<u32>>(&path).await.unwrap(), None);
        write(&path, &vec![1, 2]).await.unwrap();
        write(&path, &vec![3]).await.unwrap();
        assert_eq!(read::<Vec<u32>>(&path).await.unwrap(), Some(vec![3]));
        fs::write(&path, "[1,").await.unwrap();
        assert_eq!(read::<Vec<u32>>(&path).await.unwrap(), None);
    }
}
