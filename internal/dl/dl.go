package dl

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"
)

// Search says where a library may be.
type Search struct {
	// Name is what errors call the library: "OpenBLAS".
	Name string
	// Env is an environment variable. If it is set, it holds the library's
	// path and nothing else is tried: a user who names a library means it.
	Env string
	// Files are the library's file names, the best first:
	// "libopenblas.so.0", "libopenblas.so".
	Files []string
	// Dirs are folders, as patterns of [filepath.Glob], that are tried after
	// the loader's path.
	Dirs []string
}

// Library is a shared library that was opened.
type Library struct {
	path   string
	handle unsafe.Pointer
}

// NotFoundError says why a library could not be opened anywhere.
type NotFoundError struct {
	Name  string  // the Search's
	Env   string  // the variable that could name it
	Tried []Tried // in order
}

// Tried is one place where a library was looked for, and the loader's words.
type Tried struct{ Place, Why string }

// Error lists the places: folders without the files together, and what was
// there and could not be loaded with the loader's reason.
func (e *NotFoundError) Error() string {
	var files, folders, faults []string
	for _, t := range e.Tried {
		if len(e.Tried) == 1 || !strings.Contains(t.Why, "No such file") {
			faults = append(faults, fmt.Sprintf("%s (%s)", t.Place, t.Why))
			continue
		}
		folder := "the loader's path"
		if strings.Contains(t.Place, "/") {
			folder = filepath.Dir(t.Place)
		}
		if file := filepath.Base(t.Place); !slices.Contains(files, file) {
			files = append(files, file)
		}
		if !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	if len(files) > 0 {
		faults = append(faults, fmt.Sprintf("no %s on %s", strings.Join(files, " or "), strings.Join(folders, ", ")))
	}
	text := e.Name + " was not found"
	if e.Env != "" {
		text += fmt.Sprintf(" (%s can name it)", e.Env)
	}
	if len(faults) > 0 {
		text += ": " + strings.Join(faults, ", ")
	}
	return text
}

// Open opens the first library that s finds. The error is a [*NotFoundError].
func Open(s Search) (*Library, error) {
	missing := &NotFoundError{Name: s.Name, Env: s.Env}
	for _, place := range s.places() {
		handle, err := open(place)
		if err == nil {
			return &Library{path: place, handle: handle}, nil
		}
		missing.Tried = append(missing.Tried, Tried{place, err.Error()})
	}
	return nil, missing
}

// places lists what to give the loader, in order.
func (s Search) places() []string {
	if s.Env != "" {
		if path := os.Getenv(s.Env); path != "" {
			return []string{path}
		}
	}
	places := append([]string(nil), s.Files...)
	for _, dir := range s.Dirs {
		for _, file := range s.Files {
			found, err := filepath.Glob(filepath.Join(dir, file))
			if err != nil || len(found) == 0 {
				found = []string{filepath.Join(dir, file)} // the loader says why not
			}
			places = append(places, found...)
		}
	}
	return places
}

// Lookup finds a symbol's address.
func (l *Library) Lookup(symbol string) (unsafe.Pointer, error) {
	p, err := lookup(l.handle, symbol)
	if err != nil {
		return nil, fmt.Errorf("%s has no symbol %s: %w", l.path, symbol, err)
	}
	return p, nil
}

// String is the name that the library was opened by.
func (l *Library) String() string { return l.path }
