// Package dl opens shared libraries at run time. Nothing is linked, so one binary runs with and
// without the libraries, and the error for a missing library lists the places that were searched.
//
// If the environment variable of a [Search] is set, its value is the only place. Otherwise Open
// tries the file names on the loader's path, and then in the Search's folders. Without cgo, opening
// fails.
//
// Libraries stay open, because their code may be running on any thread. Only a caller that has not started work in a
// library may close it.
package dl
