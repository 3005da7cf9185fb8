// Package dl opens shared libraries at run time, so that one binary runs with
// or without them: nothing is linked, and a missing library is an error that
// lists the places tried.
//
// A [Search] is tried in order: a file that an environment variable names,
// which is then the only place; the names by the loader's own path; the names
// in folders of the caller's choice. Without cgo, opening fails.
//
// Libraries are never closed: code of theirs may be running on any thread.
package dl
