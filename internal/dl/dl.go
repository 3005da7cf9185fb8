package dl

import (
	"fmt"
	"os"
	"path/filepath"
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

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s was not found", e.Name)
	if e.Env != "" {
		fmt.Fprintf(&b, " (%s can name it)", e.Env)
	}
	for i, t := range e.Tried {
		if i == 0 {
			b.WriteString("; tried ")
		} else {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%s)", t.Place, t.Why)
	}
	return b.String()
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
