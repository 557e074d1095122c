//! One flush as a Parquet file: flat columns, one row group for samples and one for spans, every page compressed with ZSTD.
//!
//! Whoever reads it by name of column reads it: columns may be added, and none changes its meaning.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use scafo_core::NodeId;

use super::pages::{Budget, Source};
use super::rows::{Contents, Labels, Point, Span};

/// The columns. `docs/observations.md` says what they mean.
const SCHEMA: &str = "
message observations {
  required binary kind (STRING);
  required int64 time (TIMESTAMP(MICROS,true));
  required binary node (STRING);
  required binary process (STRING);
  required binary name (STRING);
  required group labels (MAP) {
    repeated group key_value {
      required binary key (STRING);
      required binary value (STRING);
    }
  }
  required binary type (STRING);
  optional double value;
  optional binary trace (STRING);
  optional binary span (STRING);
  optional binary parent (STRING);
  optional int64 duration_us;
  optional boolean failed;
}";

/// What `kind` says of a sample.
const METRIC: &str = "metric";
/// What `kind` says of a span.
const SPAN: &str = "span";

/// The longest file that is read. The bounds of a flush leave its file far below.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most rows of a file that is read.
const ROWS_MAX: i64 = 65_536;
/// Most bytes of its pages, unpacked, and of the texts that are copied out of them. A flush at its bounds has about half of them.
const DECODED_BYTES_MAX: i64 = 64 << 20;
/// Most values in its pages, dictionaries and places without a value included. At most some 60 bytes each are held of them. A flush at
/// its bounds has half a million, and a few for each label.
const VALUES_MAX: i64 = 4 << 20;
/// Level 3 of ZSTD: three quarters of what the highest saves, at a twentieth of its time.
const LEVEL: i32 = 3;

/// Why a file does not give what it should.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is damaged, or no Parquet at all.
    #[error("it is damaged or no Parquet: {0}")]
    Damaged(String),
    /// It is Parquet of somebody else.
    #[error("it holds no observations: {0}")]
    Foreign(String),
    /// Longer than any of ours.
    #[error("it is larger than any observation")]
    TooLarge,
}

impl From<ParquetError> for FileError {
    fn from(error: ParquetError) -> Self {
        Self::Damaged(error.to_string().chars().take(200).collect())
    }
}

/// The bytes of the file. Deterministic; takes about a microsecond a row.
///
/// # Errors
/// [`FileError::Damaged`] if the library refuses our own schema or rows, which no rows make it do.
pub fn encode(node: &NodeId, contents: &Contents) -> Result<Bytes, FileError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
        .set_created_by(concat!("scafo ", env!("CARGO_PKG_VERSION")).to_owned())
        .build();
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let points: Vec<Row<'_>> = contents.points.iter().map(Row::point).collect();
    let spans: Vec<Row<'_>> = contents.spans.iter().map(Row::span).collect();
    for rows in [points, spans].iter().filter(|rows| !rows.is_empty()) {
        let mut group = writer.next_row_group()?;
        while let Some(mut column) = group.next_column()? {
            let path = column.untyped_path();
            write(&path, &mut column, node, rows)?;
            column.close()?;
        }
        group.close()?;
    }
    Ok(writer.into_inner()?.into())
}

/// The path of the column that is written next.
trait Path {
    fn untyped_path(&mut self) -> String;
}

impl Path for SerializedColumnWriter<'_> {
    fn untyped_path(&mut self) -> String {
        use parquet::column::writer::ColumnWriter::{
            BoolColumnWriter, ByteArrayColumnWriter, DoubleColumnWriter, Int64ColumnWriter,
        };
        match self.untyped() {
            ByteArrayColumnWriter(writer) => writer.get_descriptor().path().string(),
            Int64ColumnWriter(writer) => writer.get_descriptor().path().string(),
            DoubleColumnWriter(writer) => writer.get_descriptor().path().string(),
            BoolColumnWriter(writer) => writer.get_descriptor().path().string(),
            _ => String::new(),
        }
    }
}

/// A row of either kind, as its columns see it.
struct Row<'a> {
    kind: &'static str,
    at_us: i64,
    process: &'a str,
    name: &'a str,
    labels: &'a Labels,
    sort: &'a str,
    value: Option<f64>,
    span: Option<&'a Span>,
}

impl<'a> Row<'a> {
    fn point(point: &'a Point) -> Self {
        let Point { at_us, process, name, kind, labels, value } = point;
        Row { kind: METRIC, at_us: *at_us, process, name, labels, sort: kind, value: Some(*value), span: None }
    }

    fn span(span: &'a Span) -> Self {
        let Span { at_us, process, name, kind, labels, .. } = span;
        Row { kind: SPAN, at_us: *at_us, process, name, labels, sort: kind, value: None, span: Some(span) }
    }
}

fn write(
    path: &str,
    column: &mut SerializedColumnWriter<'_>,
    node: &NodeId,
    rows: &[Row<'_>],
) -> Result<(), FileError> {
    match path {
        "kind" => texts(column, rows, false, |row| Some(row.kind)),
        "time" => values::<Int64Type>(column, rows, false, |row| Some(row.at_us)),
        "node" => texts(column, rows, false, |_| Some(node.as_str())),
        "process" => texts(column, rows, false, |row| Some(row.process)),
        "name" => texts(column, rows, false, |row| Some(row.name)),
        "labels.key_value.key" => entries(column, rows, |(key, _)| key),
        "labels.key_value.value" => entries(column, rows, |(_, value)| value),
        "type" => texts(column, rows, false, |row| Some(row.sort)),
        "value" => values::<DoubleType>(column, rows, true, |row| row.value),
        "trace" => texts(column, rows, true, |row| row.span.map(|span| span.trace.as_str())),
        "span" => texts(column, rows, true, |row| row.span.map(|span| span.id.as_str())),
        "parent" => texts(column, rows, true, |row| row.span.and_then(|span| span.parent.as_deref())),
        "duration_us" => values::<Int64Type>(column, rows, true, |row| row.span.map(|span| span.took_us)),
        "failed" => values::<BoolType>(column, rows, true, |row| row.span.map(|span| span.failed)),
        other => Err(FileError::Foreign(format!("nothing fills the column {other}"))),
    }
}

fn texts<'a>(
    column: &mut SerializedColumnWriter<'_>,
    rows: &'a [Row<'a>],
    optional: bool,
    of: impl Fn(&'a Row<'a>) -> Option<&'a str>,
) -> Result<(), FileError> {
    values::<ByteArrayType>(column, rows, optional, |row| of(row).map(ByteArray::from))
}

/// A column with at most one value for each row.
fn values<'a, T: DataType>(
    column: &mut SerializedColumnWriter<'_>,
    rows: &'a [Row<'a>],
    optional: bool,
    of: impl Fn(&'a Row<'a>) -> Option<T::T>,
) -> Result<(), FileError> {
    let found: Vec<Option<T::T>> = rows.iter().map(of).collect();
    let levels: Vec<i16> = found.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<T::T> = found.into_iter().flatten().collect();
    column.typed::<T>().write_batch(&values, optional.then_some(&levels[..]), None)?;
    Ok(())
}

/// One half of the entries of the maps. An empty map has a place and no entry (Parquet, "Nested Encoding").
fn entries(
    column: &mut SerializedColumnWriter<'_>,
    rows: &[Row<'_>],
    of: impl Fn(&(String, String)) -> &String,
) -> Result<(), FileError> {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        if row.labels.is_empty() {
            definitions.push(0);
            repetitions.push(0);
        }
        for (index, entry) in row.labels.iter().enumerate() {
            values.push(ByteArray::from(of(entry).as_str()));
            definitions.push(1);
            repetitions.push(i16::from(index > 0));
        }
    }
    column.typed::<ByteArrayType>().write_batch(&values, Some(&definitions), Some(&repetitions))?;
    Ok(())
}

/// What a file says. The node that it names is left out: it stands in the file's key.
///
/// Whatever the bytes are, it ends, and in bounded memory: pages, values and texts are charged before they are made. What the library
/// makes of the footer is not charged; it is a multiple of the footer's length, and with it of [`FILE_BYTES_MAX`].
///
/// # Errors
/// [`FileError`].
pub fn decode(bytes: Bytes) -> Result<Contents, FileError> {
    decode_within(bytes, &Budget::new(DECODED_BYTES_MAX, VALUES_MAX))
}

/// As [`decode`], on this budget.
pub(super) fn decode_within(bytes: Bytes, budget: &Budget) -> Result<Contents, FileError> {
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLarge);
    }
    // The library has asserted what a damaged file does not hold before.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_trusting(bytes, budget)));
    let decoded = decoded.unwrap_or_else(|_| Err(FileError::Damaged("its parts contradict each other".to_owned())));
    // Whatever the library makes of the refusal.
    if budget.is_spent() { Err(FileError::TooLarge) } else { decoded }
}

fn decode_trusting(bytes: Bytes, budget: &Budget) -> Result<Contents, FileError> {
    let file = SerializedFileReader::new(bytes.clone())?;
    let groups = file.metadata().row_groups();
    let rows: i64 = groups.iter().map(|group| group.num_rows().max(0)).fold(0, i64::saturating_add);
    if rows > ROWS_MAX {
        return Err(FileError::TooLarge);
    }
    let source = Source::new(bytes, budget.clone());
    let mut contents = Contents::default();
    for group in groups {
        let rows = usize::try_from(group.num_rows()).unwrap_or(0);
        decode_group(&Columns { group, rows, source: &source, budget }, &mut contents)?;
    }
    Ok(contents)
}

fn decode_group(columns: &Columns<'_>, into: &mut Contents) -> Result<(), FileError> {
    let mut processes = columns.texts("process")?.into_iter();
    let mut names = columns.texts("name")?.into_iter();
    let mut types = columns.texts("type")?.into_iter();
    let mut labels = columns.labels()?.into_iter();
    let mut times = columns.numbers("time")?.into_iter();
    let mut values = columns.doubles("value")?.into_iter();
    let mut traces = columns.texts("trace")?.into_iter();
    let mut ids = columns.texts("span")?.into_iter();
    let mut parents = columns.texts("parent")?.into_iter();
    let mut durations = columns.numbers("duration_us")?.into_iter();
    let mut failures = columns.flags("failed")?.into_iter();
    for kind in columns.texts("kind")? {
        let missing = || FileError::Foreign("a row lacks what its kind has".to_owned());
        let (process, name, sort) = (names_of(&mut processes)?, names_of(&mut names)?, names_of(&mut types)?);
        let labels = labels.next().ok_or_else(missing)?;
        let at_us = times.next().flatten().ok_or_else(missing)?;
        let (value, trace, id) = (values.next().flatten(), traces.next().flatten(), ids.next().flatten());
        let (parent, took, failed) = (parents.next().flatten(), durations.next().flatten(), failures.next().flatten());
        match kind.as_deref() {
            Some(METRIC) => {
                let value = value.ok_or_else(missing)?;
                into.points.push(Point { at_us, process, name, kind: sort, labels, value });
            }
            Some(SPAN) => into.spans.push(Span {
                at_us,
                process,
                name,
                kind: sort,
                labels,
                trace: trace.ok_or_else(missing)?,
                id: id.ok_or_else(missing)?,
                parent,
                took_us: took.ok_or_else(missing)?,
                failed: failed.ok_or_else(missing)?,
            }),
            // A later version records something else.
            _ => {}
        }
    }
    Ok(())
}

fn names_of(values: &mut impl Iterator<Item = Option<String>>) -> Result<String, FileError> {
    values.next().flatten().ok_or_else(|| FileError::Foreign("a row lacks a name".to_owned()))
}

/// The columns of one row group, by name.
struct Columns<'a> {
    group: &'a RowGroupMetaData,
    rows: usize,
    source: &'a Arc<Source>,
    budget: &'a Budget,
}

/// What a column gives: its levels of definition (empty where each row has a value) and of repetition, and its values.
struct Read<T> {
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    values: Vec<T>,
}

impl Columns<'_> {
    fn open(&self, name: &str) -> Result<ColumnReader, FileError> {
        let columns = self.group.columns();
        let index = columns.iter().position(|column| column.column_path().string() == name);
        let index = index.ok_or_else(|| FileError::Foreign(format!("it has no column {name}")))?;
        Ok(self.source.column(self.group, index, self.rows)?)
    }

    fn read<T: DataType>(&self, reader: &mut ColumnReaderImpl<T>) -> Result<Read<T::T>, FileError> {
        let mut read = Read { definitions: Vec::new(), repetitions: Vec::new(), values: Vec::new() };
        let mut rows = 0;
        while rows < self.rows {
            let Read { definitions, repetitions, values } = &mut read;
            let (more, ..) = reader.read_records(self.rows - rows, Some(definitions), Some(repetitions), values)?;
            if more == 0 {
                return Err(FileError::Damaged("a column ends before the others".to_owned()));
            }
            rows += more;
        }
        Ok(read)
    }

    /// Of each row the value, if it has one.
    fn flat<T: DataType>(&self, reader: &mut ColumnReaderImpl<T>) -> Result<Vec<Option<T::T>>, FileError> {
        let Read { definitions, values, .. } = self.read(reader)?;
        if definitions.is_empty() {
            return Ok(values.into_iter().map(Some).collect());
        }
        let mut values = values.into_iter();
        Ok(definitions.iter().map(|level| if *level > 0 { values.next() } else { None }).collect())
    }

    fn texts(&self, name: &str) -> Result<Vec<Option<String>>, FileError> {
        let ColumnReader::ByteArrayColumnReader(mut reader) = self.open(name)? else { return Err(other_type(name)) };
        let values = self.flat(&mut reader)?;
        values.into_iter().map(|value| value.as_ref().map(|value| self.text(value)).transpose()).collect()
    }

    /// A copy. A value may be one of a dictionary, of which each row that names it wants another one.
    fn text(&self, bytes: &ByteArray) -> Result<String, FileError> {
        self.budget.bytes(bytes.len())?;
        let text = bytes.as_utf8().map_err(|_| FileError::Foreign("a text is none".to_owned()))?;
        Ok(text.to_owned())
    }

    fn numbers(&self, name: &str) -> Result<Vec<Option<i64>>, FileError> {
        let ColumnReader::Int64ColumnReader(mut reader) = self.open(name)? else { return Err(other_type(name)) };
        self.flat(&mut reader)
    }

    fn doubles(&self, name: &str) -> Result<Vec<Option<f64>>, FileError> {
        let ColumnReader::DoubleColumnReader(mut reader) = self.open(name)? else { return Err(other_type(name)) };
        self.flat(&mut reader)
    }

    fn flags(&self, name: &str) -> Result<Vec<Option<bool>>, FileError> {
        let ColumnReader::BoolColumnReader(mut reader) = self.open(name)? else { return Err(other_type(name)) };
        self.flat(&mut reader)
    }

    fn labels(&self) -> Result<Vec<Labels>, FileError> {
        let half = |name: &str| {
            let ColumnReader::ByteArrayColumnReader(mut reader) = self.open(name)? else {
                return Err(other_type(name));
            };
            self.read(&mut reader)
        };
        let (keys, values) = (half("labels.key_value.key")?, half("labels.key_value.value")?);
        if keys.repetitions != values.repetitions || keys.definitions != values.definitions {
            return Err(FileError::Damaged("names and values of labels are not pairs".to_owned()));
        }
        let mut pairs = keys.values.iter().zip(&values.values);
        let mut labels: Vec<Labels> = Vec::new();
        for (definition, repetition) in keys.definitions.iter().zip(&keys.repetitions) {
            if *repetition == 0 {
                labels.push(Labels::new());
            }
            if *definition > 0
                && let (Some(of), Some((key, value))) = (labels.last_mut(), pairs.next())
            {
                of.push((self.text(key)?, self.text(value)?));
            }
        }
        Ok(labels)
    }
}

fn other_type(name: &str) -> FileError {
    FileError::Foreign(format!("its column {name} is of another type"))
}
