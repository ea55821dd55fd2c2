//! Numbers in and out: NumPy arrays in one pass, lists without a reference to each item.
//!
//! Invariant: nothing is taken that only can be read as a number, such as a bool or bytes.

use abut_core::Error;
use numpy::ndarray::Dimension;
use numpy::{
    Element, PyArray, PyArray1, PyArrayDescrMethods, PyReadonlyArray1, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyList, PyMemoryView, PyString};

use crate::convert::type_name;
use crate::detach::copying;
use crate::error;

/// The numbers that ids and logprobs are made of.
pub trait Number: Element + Copy {
    /// Their name in a message.
    const PLURAL: &'static str;
    /// The kinds of dtypes that all of them can be converted from without a look at each value.
    const KINDS: &'static [u8];

    /// The number that an item of a list is.
    fn from_item(item: &Bound<'_, PyAny>) -> Option<Self>;

    /// The number of an object of exactly the type that lists mostly hold; `None` for any other.
    ///
    /// # Safety
    /// `item` is an object, and the GIL is held.
    unsafe fn from_exact(item: *mut ffi::PyObject) -> Option<Self>;
}

impl Number for i64 {
    const PLURAL: &'static str = "ints";
    const KINDS: &'static [u8] = b"iu";

    fn from_item(item: &Bound<'_, PyAny>) -> Option<Self> {
        if item.is_instance_of::<PyBool>() { None } else { item.extract().ok() }
    }

    unsafe fn from_exact(item: *mut ffi::PyObject) -> Option<Self> {
        // SAFETY: the caller's. No code of Python runs: an exact int is its own __index__.
        unsafe {
            if ffi::PyLong_CheckExact(item) == 0 {
                return None;
            }
            let number = ffi::PyLong_AsLongLong(item);
            // -1 is also what too large a number gives, with an exception set.
            if number == -1 && !ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_Clear();
                return None;
            }
            Some(number)
        }
    }
}

impl Number for f32 {
    const PLURAL: &'static str = "floats";
    const KINDS: &'static [u8] = b"f";

    /// None becomes NaN, which the core refuses by index.
    fn from_item(item: &Bound<'_, PyAny>) -> Option<Self> {
        if item.is_none() {
            return Some(Self::NAN);
        }
        if item.is_instance_of::<PyBool>() { None } else { item.extract().ok() }
    }

    #[allow(clippy::cast_possible_truncation, reason = "logprobs are float32")]
    unsafe fn from_exact(item: *mut ffi::PyObject) -> Option<Self> {
        // SAFETY: the caller's. An exact float always has its value.
        unsafe {
            let exact = ffi::PyFloat_CheckExact(item) != 0;
            exact.then(|| ffi::PyFloat_AsDouble(item) as Self)
        }
    }
}

/// One-dimensional numbers, borrowed where they lie as the core reads them.
pub enum Numbers<'py, T: Number> {
    Borrowed(PyReadonlyArray1<'py, T>),
    Copied(Vec<T>),
}

impl<'py, T: Number> Numbers<'py, T> {
    /// The numbers of an array, a list or another sequence; `None` where it is no such thing.
    pub fn new(value: &Bound<'py, PyAny>) -> Option<Self> {
        if let Ok(list) = value.cast_exact::<PyList>() {
            return from_list(list).map(Self::Copied);
        }
        if let Ok(array) = value.cast::<PyUntypedArray>() {
            return Self::from_array(array);
        }
        let bytes = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>();
        if bytes || value.is_instance_of::<PyMemoryView>() || value.is_instance_of::<PyString>() {
            return None;
        }
        Self::from_items(value)
    }

    fn from_array(array: &Bound<'py, PyUntypedArray>) -> Option<Self> {
        let dtype = array.dtype();
        // An empty array has any shape, and bools convert to numbers without complaint.
        if array.ndim() != 1 || dtype.kind() == b'b' {
            return None;
        }
        let own = T::get_dtype(array.py());
        if array.is_contiguous() && dtype.is_equiv_to(&own) {
            return array.extract().ok().map(Self::Borrowed);
        }
        let any_fits = dtype.kind() != b'u' || dtype.itemsize() < size_of::<i64>();
        if any_fits && T::KINDS.contains(&dtype.kind()) {
            let converted = array.call_method1("astype", (own, "C")).ok()?;
            return converted.extract().ok().map(Self::Borrowed);
        }
        Self::from_items(array)
    }

    fn from_items(value: &Bound<'py, PyAny>) -> Option<Self> {
        let items = value.extract::<Vec<Bound<'py, PyAny>>>().ok()?;
        items.iter().map(T::from_item).collect::<Option<_>>().map(Self::Copied)
    }

    /// The numbers of an argument of that name.
    pub fn of(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::new(value).ok_or_else(|| {
            let (what, got) = (T::PLURAL, describe::<T>(value));
            PyTypeError::new_err(format!(
                "{name} must be a one-dimensional array or list of {what}, got {got}"
            ))
        })
    }

    pub fn as_slice(&self) -> PyResult<&[T]> {
        match self {
            Self::Borrowed(array) => Ok(array.as_slice()?),
            Self::Copied(numbers) => Ok(numbers),
        }
    }

    /// An array that the caller alone has.
    pub fn into_array(self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<T>>> {
        match self {
            Self::Borrowed(array) => Ok(PyArray1::from_slice(py, array.as_slice()?)),
            Self::Copied(numbers) => Ok(PyArray1::from_vec(py, numbers)),
        }
    }
}

/// The numbers of a list. Each costs two calls of the stable ABI; a reference to its item would
/// cost three more.
fn from_list<T: Number>(list: &Bound<'_, PyList>) -> Option<Vec<T>> {
    let mut numbers = Vec::with_capacity(list.len());
    for index in 0..list.len() {
        let at = ffi::Py_ssize_t::try_from(index).ok()?;
        // SAFETY: the GIL is held, and no code of Python runs while the item is borrowed.
        let exact = unsafe {
            let item = ffi::PyList_GetItem(list.as_ptr(), at);
            if item.is_null() {
                ffi::PyErr_Clear();
                return None;
            }
            T::from_exact(item)
        };
        // Asking any other item runs Python code, which may even shorten the list.
        numbers.push(exact.or_else(|| T::from_item(&list.get_item(index).ok()?))?);
    }
    Some(numbers)
}

/// A value as a message describes it: an array by its shape and dtype, a list by its first odd item.
fn describe<T: Number>(value: &Bound<'_, PyAny>) -> String {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return format!("an array of shape {:?} and dtype {}", array.shape(), array.dtype());
    }
    let odd = value
        .cast::<PyList>()
        .ok()
        .and_then(|items| items.iter().enumerate().find(|(_, item)| T::from_item(item).is_none()));
    match odd {
        Some((index, item)) => format!("a list with {} at index {index}", type_name(&item)),
        None => type_name(value),
    }
}

/// Ids as the core has them.
pub fn ids_in(value: &Bound<'_, PyAny>, vocab_size: usize) -> PyResult<Vec<u32>> {
    let numbers = Numbers::<i64>::of("ids", value)?;
    let ids = numbers.as_slice()?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "judged below")]
    let (all, narrow) = copying(value.py(), ids.len(), || {
        // One look at all bits of all ids; which one does not fit is asked only where one does not.
        // It has its own pass: with the conversion in one pass, decoding 273 ids took 2.2 us, not 2.0.
        let all = ids.iter().fold(0, |all, id| all | id);
        (all, ids.iter().map(|&id| id as u32).collect::<Vec<u32>>())
    });
    if u32::try_from(all).is_ok() {
        return Ok(narrow);
    }
    let fits = |&id: &i64| u32::try_from(id).is_ok();
    let position = ids.iter().take_while(|id| fits(id)).count();
    Err(error::to_py(&Error::UnknownId { position, id: ids[position], vocab_size }))
}

/// Return the positions of any of these tokens in the ids.
///
/// Args:
///     ids: `(T,)`, of any signed integers.
///     tokens: those to look for, at most a few.
#[pyfunction]
#[pyo3(signature = (ids, tokens, /))]
pub fn positions_of(ids: &Bound<'_, PyAny>, tokens: Vec<i64>) -> PyResult<Vec<usize>> {
    let numbers = Numbers::<i64>::of("ids", ids)?;
    let ids = numbers.as_slice()?.iter().enumerate();
    // Control tokens are neighbours in most vocabularies: two comparisons rule out most ids.
    let (Some(&lowest), Some(&highest)) = (tokens.iter().min(), tokens.iter().max()) else {
        return Ok(Vec::new());
    };
    let near = ids.filter(|(_, id)| (lowest..=highest).contains(*id));
    Ok(near.filter(|(_, id)| tokens.contains(id)).map(|(position, _)| position).collect())
}

/// Ids as an int64 array.
pub fn ids_out<'py>(py: Python<'py>, ids: &[u32]) -> Bound<'py, PyArray1<i64>> {
    PyArray1::from_vec(py, copying(py, ids.len(), || widened(ids)))
}

/// Ids as NumPy has them.
pub fn widened(ids: &[u32]) -> Vec<i64> {
    ids.iter().map(|&id| id.into()).collect()
}

/// Zeros, or NumPy's `MemoryError`: the `numpy` crate panics where there is no memory.
pub fn zeros<'py, T: Element, D: Dimension>(
    py: Python<'py>,
    shape: impl IntoPyObject<'py>,
) -> PyResult<Bound<'py, PyArray<T, D>>> {
    made_by(py, "zeros", shape)
}

/// The same for values that are all written before anybody sees them. Memory that was used before
/// is not cleared first, which for a batch takes as long as to write it.
pub fn empty<'py, T: Element, D: Dimension>(
    py: Python<'py>,
    shape: impl IntoPyObject<'py>,
) -> PyResult<Bound<'py, PyArray<T, D>>> {
    made_by(py, "empty", shape)
}

fn made_by<'py, T: Element, D: Dimension>(
    py: Python<'py>,
    function: &str,
    shape: impl IntoPyObject<'py>,
) -> PyResult<Bound<'py, PyArray<T, D>>> {
    Ok(py.import("numpy")?.call_method1(function, (shape, T::get_dtype(py)))?.cast_into()?)
}
