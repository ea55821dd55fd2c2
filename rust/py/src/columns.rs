//! `abut.Columns` and `abut.collate`.

use abut_core::{Batch, Columns, Dimensions, Row};
use numpy::{
    Element, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadwriteArray2,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::{Numbers, empty};
use crate::error;

/// One row for a trainer. The three arrays after the prompt are aligned.
///
/// Args:
///     prompt_ids: `(P,)`.
///     completion_ids: `(T,)`.
///     logprobs: `(T,)`, nats: finite where `env_mask` is 1, else 0.0.
///     env_mask: `(T,)`: 1 where the policy sampled the token, else 0.
///
/// Raises:
///     TrajectoryError: an id is negative, a length differs, or mask and logprob disagree.
#[pyclass(name = "Columns", module = "abut", frozen)]
pub struct PyColumns {
    /// `(P,)` int64: all ids before the first sampled one.
    #[pyo3(get)]
    prompt_ids: Py<PyArray1<i64>>,
    /// `(T,)` int64: all ids from the first to the last sampled one.
    #[pyo3(get)]
    completion_ids: Py<PyArray1<i64>>,
    /// `(T,)` float32, nats; 0.0 where `env_mask` is 0.
    #[pyo3(get)]
    logprobs: Py<PyArray1<f32>>,
    /// `(T,)` uint8: 1 where the policy sampled the token.
    #[pyo3(get)]
    env_mask: Py<PyArray1<u8>>,
}

impl PyColumns {
    pub fn from_core(py: Python<'_>, columns: Columns) -> Self {
        Self {
            prompt_ids: PyArray1::from_vec(py, columns.prompt_ids).unbind(),
            completion_ids: PyArray1::from_vec(py, columns.completion_ids).unbind(),
            logprobs: PyArray1::from_vec(py, columns.logprobs).unbind(),
            env_mask: PyArray1::from_vec(py, columns.env_mask).unbind(),
        }
    }
}

/// The arrays of one row.
fn row<'a>(py: Python<'a>, columns: &'a PyColumns) -> PyResult<Row<'a>> {
    let PyColumns { prompt_ids, completion_ids, logprobs, env_mask } = columns;
    // SAFETY: the arrays live as long as `columns`, and no Rust code ever writes to them. Counted borrows
    // would not keep Python from writing either, and cost a tenth of the time of a batch.
    unsafe {
        Ok(Row {
            prompt_ids: prompt_ids.bind(py).as_slice()?,
            completion_ids: completion_ids.bind(py).as_slice()?,
            logprobs: logprobs.bind(py).as_slice()?,
            env_mask: env_mask.bind(py).as_slice()?,
        })
    }
}

#[pymethods]
impl PyColumns {
    #[new]
    #[pyo3(signature = (*, prompt_ids, completion_ids, logprobs, env_mask))]
    fn new(
        py: Python<'_>,
        prompt_ids: &Bound<'_, PyAny>,
        completion_ids: &Bound<'_, PyAny>,
        logprobs: &Bound<'_, PyAny>,
        env_mask: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let columns = Self {
            prompt_ids: not_negative("prompt_ids", prompt_ids)?.unbind(),
            completion_ids: not_negative("completion_ids", completion_ids)?.unbind(),
            logprobs: Numbers::of("logprobs", logprobs)?.into_array(py)?.unbind(),
            env_mask: mask_in(env_mask)?.unbind(),
        };
        row(py, &columns)?.check(0).map_err(|e| error::to_py(&e))?;
        Ok(columns)
    }

    /// For pickle: rows travel between processes.
    fn __getnewargs_ex__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let arguments = PyDict::new(py);
        arguments.set_item("prompt_ids", &self.prompt_ids)?;
        arguments.set_item("completion_ids", &self.completion_ids)?;
        arguments.set_item("logprobs", &self.logprobs)?;
        arguments.set_item("env_mask", &self.env_mask)?;
        Ok((PyTuple::empty(py), arguments))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "Columns({} prompt tokens, {} completion tokens)",
            self.prompt_ids.bind(py).len(),
            self.completion_ids.bind(py).len()
        )
    }
}

fn not_negative<'py>(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let numbers = Numbers::<i64>::of(name, value)?;
    let ids = numbers.as_slice()?;
    match ids.iter().position(|&id| id < 0) {
        None => numbers.into_array(value.py()),
        Some(index) => Err(error::trajectory(format!(
            "{name}[{index}] is {}: an id must not be negative\nhint: leave padding out of a row",
            ids[index]
        ))),
    }
}

fn mask_in<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u8>>> {
    if let Ok(mask) = value.extract::<PyReadonlyArray1<'_, u8>>() {
        return Ok(PyArray1::from_vec(value.py(), mask.as_array().to_vec()));
    }
    let mask = Numbers::<i64>::of("env_mask", value)?;
    // A value that is not a byte becomes one that is not a mask value, which the core refuses.
    let bytes = mask.as_slice()?.iter().map(|&mask| u8::try_from(mask).unwrap_or(u8::MAX));
    Ok(PyArray1::from_vec(value.py(), bytes.collect()))
}

/// Pad rows to one rectangle each: prompts on the left, completions on the right.
///
/// Takes about as long as copying the bytes. All arrays are views of one block of memory,
/// which lives as long as one of them.
///
/// Args:
///     columns: B rows.
///     pad_id: the padding of `prompt_ids` and `completion_ids`; other arrays are padded with
///         0.
///
/// Returns:
///     `prompt_ids` int64 and `prompt_mask` uint8, `(B, P)`; `completion_ids` int64,
///     `completion_mask` uint8, `logprobs` float32 and `env_mask` uint8, `(B, T)`.
///
/// Raises:
///     TrajectoryError: an array of a row was changed, so that mask and logprob disagree.
#[pyfunction]
#[pyo3(signature = (columns, *, pad_id))]
pub fn collate<'py>(
    py: Python<'py>,
    columns: Vec<Bound<'py, PyColumns>>,
    pad_id: i64,
) -> PyResult<Bound<'py, PyDict>> {
    let rows =
        columns.iter().map(|columns| row(py, columns.get())).collect::<PyResult<Vec<_>>>()?;
    let Dimensions { rows: count, prompt_len, completion_len } = Dimensions::of(&rows);
    let (prompt, completion) = ([count, prompt_len], [count, completion_len]);
    // An id and a mask for each token, in completions a logprob and another mask as well.
    let mut block = Block::new(py, 9 * count * prompt_len + 14 * count * completion_len, 6)?;
    let mut prompt_ids = block.room(prompt)?;
    let mut completion_ids = block.room(completion)?;
    let mut logprobs = block.room(completion)?;
    let mut prompt_mask = block.room(prompt)?;
    let mut completion_mask = block.room(completion)?;
    let mut env_mask = block.room(completion)?;
    let mut batch = Batch {
        prompt_ids: prompt_ids.as_slice_mut()?,
        prompt_mask: prompt_mask.as_slice_mut()?,
        completion_ids: completion_ids.as_slice_mut()?,
        completion_mask: completion_mask.as_slice_mut()?,
        logprobs: logprobs.as_slice_mut()?,
        env_mask: env_mask.as_slice_mut()?,
    };
    py.detach(|| abut_core::collate(&rows, pad_id, &mut batch)).map_err(|e| error::to_py(&e))?;
    let dict = PyDict::new(py);
    dict.set_item("prompt_ids", &**prompt_ids)?;
    dict.set_item("prompt_mask", &**prompt_mask)?;
    dict.set_item("completion_ids", &**completion_ids)?;
    dict.set_item("completion_mask", &**completion_mask)?;
    dict.set_item("logprobs", &**logprobs)?;
    dict.set_item("env_mask", &**env_mask)?;
    Ok(dict)
}

/// Bytes of a large page.
const PAGE: usize = 2 << 20;
/// The alignment of arrays, in bytes: a line of the cache.
const LINE: usize = 64;

/// One piece of memory for all arrays of a batch. NumPy allocates it and asks for large pages, but the two
/// ends of a piece have small ones: as six pieces, a batch of 56 MB touched 3,000 small pages, which took
/// as long as writing it. So all arrays share one piece, and in a long one they begin and end with a large
/// page; the memory before and behind is never touched.
struct Block<'py> {
    memory: Bound<'py, PyArray1<u8>>,
    taken: usize,
}

impl<'py> Block<'py> {
    fn new(py: Python<'py>, bytes: usize, arrays: usize) -> PyResult<Self> {
        let bytes = bytes + arrays * LINE;
        if bytes < 2 * PAGE {
            return Ok(Self { memory: empty(py, bytes)?, taken: 0 });
        }
        let memory: Bound<'_, PyArray1<u8>> = empty(py, bytes.next_multiple_of(PAGE) + PAGE)?;
        let before = memory.data().addr().wrapping_neg() % PAGE;
        Ok(Self { memory, taken: before })
    }

    /// The next array. Even an empty one has an address that no other array has.
    fn room<T: Element>(&mut self, shape: [usize; 2]) -> PyResult<PyReadwriteArray2<'py, T>> {
        let py = self.memory.py();
        let arguments = ((shape[0], shape[1]), T::get_dtype(py), &self.memory, self.taken);
        let array = py.import("numpy")?.call_method1("ndarray", arguments)?;
        self.taken += (shape[0] * shape[1] * size_of::<T>()).max(1).next_multiple_of(LINE);
        Ok(array.cast_into::<PyArray2<T>>()?.try_readwrite()?)
    }
}
