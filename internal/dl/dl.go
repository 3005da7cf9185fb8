package dl

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"
)

// Search lists the places where a library may be.
type Search struct {
	// Name is the library's name in errors: "OpenBLAS".
	Name string
	// Env is an environment variable. If it is set, its value is the library's path, and Open tries
	// no other place.
	Env string
	// Files are the library's file names, the preferred one first: "libopenblas.so.0",
	// "libopenblas.so". In Dirs they may be patterns of [filepath.Glob]; the loader's path has none.
	Files []string
	// Dirs are folders, as patterns of [filepath.Glob], which Open tries after the loader's path.
	Dirs []string
}

// Library is an open shared library.
type Library struct {
	path   string
	handle unsafe.Pointer
}

// NotFoundError lists the places where a library was searched.
type NotFoundError struct {
	Name  string  // Search.Name
	Env   string  // Search.Env
	Tried []Tried // in the order of the search
}

// Tried is a place where a library was searched, and the loader's error message.
type Tried struct{ Place, Why string }

// Error lists the places. It lists folders without the files together, and gives the loader's
// reason for each file that could not be loaded.
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

// places returns the paths to give to the loader, in order.
func (s Search) places() []string {
	if s.Env != "" {
		if path := os.Getenv(s.Env); path != "" {
			return []string{path}
		}
	}
	places := slices.DeleteFunc(slices.Clone(s.Files), func(file string) bool { return strings.Contains(file, "*") })
	for _, dir := range s.Dirs {
		for _, file := range s.Files {
			found, err := filepath.Glob(filepath.Join(dir, file))
			if err != nil || len(found) == 0 {
				found = []string{filepath.Join(dir, file)} // the loader's error names the missing file
			}
			places = append(places, found...)
		}
	}
	return places
}

// Lookup returns the address of a symbol.
func (l *Library) Lookup(symbol string) (unsafe.Pointer, error) {
	p, err := lookup(l.handle, symbol)
	if err != nil {
		return nil, fmt.Errorf("%s has no symbol %s: %w", l.path, symbol, err)
	}
	return p, nil
}

// Close closes the library. If nothing else in the process has it open, the loader unloads it, so that the next Open
// initializes it anew. The caller must not use its symbols any more.
func (l *Library) Close() { closeHandle(l.handle) }

// String returns the path that the library was opened with.
func (l *Library) String() string { return l.path }
