//! The ids of all requests of a trajectory in one array: each request is a view of its beginning.
//!
//! Invariant: no id that a request shows is ever written again. Frozen ids never change, so a turn
//! writes only the ids that it adds, behind all requests that were given out. If they do not fit, a new
//! array of twice the size takes over, and the old one lives as long as its requests.

use std::slice;

use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PySlice;

use crate::arrays::zeros;
use crate::detach::copying;

/// The array that the requests of one trajectory are views of.
#[derive(Default)]
pub struct Requests {
    array: Option<Py<PyArray1<i64>>>,
    /// The number of ids in it.
    len: usize,
}

impl Requests {
    /// All of `ids`, read-only; those of the last request come first and are the same.
    pub fn view<'py>(
        &mut self,
        py: Python<'py>,
        ids: &[u32],
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let array = self.with_room_for(py, ids.len())?;
        let added = &ids[self.len..];
        // SAFETY: the array has room for all ids. Only this writes to it, and all views of it end
        // at `self.len`, so no other reference reaches behind it.
        let free = unsafe { slice::from_raw_parts_mut(array.data().add(self.len), added.len()) };
        copying(py, added.len(), || {
            free.iter_mut().zip(added).for_each(|(free, &id)| *free = id.into());
        });
        self.len = ids.len();
        let end = isize::try_from(ids.len())?;
        Ok(array.get_item(PySlice::new(py, 0, end, 1))?.cast_into()?)
    }

    fn with_room_for<'py>(
        &mut self,
        py: Python<'py>,
        tokens: usize,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let had = self.array.as_ref().map_or(0, |array| array.bind(py).len());
        if let Some(array) = self.array.as_ref().filter(|_| tokens <= had) {
            return Ok(array.bind(py).clone());
        }
        let array: Bound<'py, PyArray1<i64>> = zeros(py, tokens.max(2 * had))?;
        // A view of a read-only array is read-only, and its own flag can't make it writeable.
        array.try_readwrite()?.make_nonwriteable();
        self.array = Some(array.clone().unbind());
        self.len = 0;
        Ok(array)
    }
}
