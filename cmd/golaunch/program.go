package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/build"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/files"
)

// program is the program that the workers execute.
type program struct {
	args []string // the arguments of the worker process, with the program first
	name string   // the program's name in reports
	temp string   // the temporary folder with the executable that golaunch built, or ""
}

// remove deletes the executable that golaunch built.
func (p *program) remove() {
	if p.temp == "" {
		return
	}
	if err := os.RemoveAll(p.temp); err != nil {
		say(fmt.Sprintf("removing the build folder: %v", err))
	}
}

// findProgram turns PROGRAM and its arguments into a command. A file or folder takes
// precedence over a program on PATH. If neither can be executed, the error is about the
// file or folder.
func findProgram(ctx context.Context, o *options) (*program, error) {
	name, args := o.command[0], o.command[1:]
	switch {
	case o.module:
		return python(name, append([]string{"-m", name}, args...))
	case o.runPath:
		if _, err := os.Stat(name); err != nil {
			return nil, usagef("%s: %w", name, errors.Unwrap(err))
		}
		return python(name, append([]string{name}, args...))
	case o.noPython:
		return executable(name, args)
	}
	info, err := os.Stat(name)
	switch suffix := filepath.Ext(name); {
	case err == nil && info.IsDir():
		prog, err := goPackage(ctx, name, args)
		return orOnPath(name, args, prog, err)
	case err != nil && isImportPath(name):
		return importedPackage(ctx, name, args)
	case suffix != ".py" && suffix != ".go":
		return executable(name, args)
	case err != nil:
		return nil, usagef("%s: %w", name, errors.Unwrap(err))
	case suffix == ".go":
		return goFile(ctx, name, args)
	}
	return python(name, append([]string{name}, args...))
}

func python(name string, args []string) (*program, error) {
	interpreter := os.Getenv("PYTHON_EXEC")
	if interpreter == "" {
		interpreter = "python3"
	}
	path, err := exec.LookPath(interpreter)
	if err != nil {
		return nil, usagef("no Python to run %s: %s is not on PATH; set PYTHON_EXEC to another interpreter", name, interpreter)
	}
	return &program{args: append([]string{path, "-u"}, args...), name: filepath.Base(name)}, nil
}

// executable returns the program of an executable file, or of that name on PATH.
func executable(name string, args []string) (*program, error) {
	path, where := name, ""
	if !strings.ContainsRune(name, filepath.Separator) {
		path, where = "./"+name, " here or on PATH"
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		err = usagef("%s: there is no such program%s", name, where)
	case info.IsDir():
		err = usagef("%s is a folder", name)
	case info.Mode()&0o111 == 0:
		err = usagef("%s is not executable", name)
	case unix.Access(path, unix.X_OK) != nil:
		err = usagef("%s cannot be executed: this user lacks the permission, or its file system is mounted noexec", name)
	default:
		return &program{args: append([]string{path}, args...), name: filepath.Base(name)}, nil
	}
	return orOnPath(name, args, nil, err)
}

// orOnPath returns prog if err is nil. Otherwise it returns the program called name on
// PATH. If there is none, or if name holds a separator, it returns err.
func orOnPath(name string, args []string, prog *program, err error) (*program, error) {
	if err == nil || strings.ContainsRune(name, filepath.Separator) {
		return prog, err
	}
	path, notFound := exec.LookPath(name)
	if notFound != nil {
		return nil, err
	}
	return &program{args: append([]string{path}, args...), name: name}, nil
}

// goPackage builds the command in a folder.
func goPackage(ctx context.Context, dir string, args []string) (*program, error) {
	command := build.Default
	command.OpenFile = func(path string) (io.ReadCloser, error) { return files.Open(path) } // a pipe could wait for ever
	pkg, err := command.ImportDir(dir, 0)
	var none *build.NoGoError
	var other *files.NotRegularError
	switch {
	case errors.As(err, &other):
		return nil, usagef("%w", err)
	case errors.As(err, &none):
		return nil, usagef("%s is a folder without Go files", dir)
	case err == nil && !pkg.IsCommand():
		return nil, usagef("%s holds package %s; want package main", dir, pkg.Name)
	}
	// The compiler explains any other error.
	return goBuild(ctx, dir, ".", dir, args)
}

// goFile builds the command in a file.
func goFile(ctx context.Context, name string, args []string) (*program, error) {
	f, err := files.Open(name) // a pipe could wait for ever
	if err != nil {
		return nil, usagef("%w", err)
	}
	defer f.Close()
	file, err := parser.ParseFile(token.NewFileSet(), name, f, parser.PackageClauseOnly)
	if err == nil && file.Name.Name != "main" { // go build would write a library
		return nil, usagef("%s is of package %s; want package main", name, file.Name.Name)
	}
	// The compiler explains any other error.
	return goBuild(ctx, filepath.Dir(name), filepath.Base(name), name, args)
}

// isImportPath reports whether name, which is not a file, can be an import path: its first element
// must look like a host name.
func isImportPath(name string) bool {
	host, _, longer := strings.Cut(name, "/")
	return longer && strings.Contains(host, ".") && !strings.HasPrefix(host, ".")
}

// importedPackage builds the command with an import path, in the version that the module of
// the current folder requires.
func importedPackage(ctx context.Context, path string, args []string) (*program, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{.Name}}", path)
	var why strings.Builder
	cmd.Stderr = &why
	out, err := cmd.Output()
	name := strings.TrimSpace(string(out))
	switch {
	case err != nil:
		return nil, usagef("%s: go list: %s", path, cmp.Or(strings.TrimSpace(why.String()), err.Error()))
	case name != "main":
		return nil, usagef("%s is package %s; want package main", path, name)
	}
	return goBuild(ctx, ".", path, path, args)
}

// goBuild builds target, a path relative to dir or an import path. The executable is in a new folder in GOTMPDIR or else
// TMPDIR, where go build also makes its temporary folders.
func goBuild(ctx context.Context, dir, target, name string, args []string) (_ *program, err error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	p := &program{name: filepath.Base(abs)}
	where, err := filepath.Abs(cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir())) // go build runs in another folder
	if err == nil {
		p.temp, err = os.MkdirTemp(where, "golaunch_build_")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot create a temporary folder to build in: %w: set GOTMPDIR or TMPDIR to another folder", err)
	}
	defer func() {
		if err != nil {
			p.remove()
		}
	}()
	out := filepath.Join(p.temp, strings.TrimSuffix(p.name, ".go"))
	cmd := exec.CommandContext(ctx, "go", "build", "-C", dir, "-o", out, target)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "GOTMPDIR="+p.temp)
	// The first build of a program takes minutes on a slow machine.
	defer time.AfterFunc(3*time.Second, func() { say(fmt.Sprintf("go build %s is still running", name)) }).Stop()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go build %s: %w", name, err)
	}
	if unix.Access(out, unix.X_OK) != nil {
		return nil, fmt.Errorf("%s was built in %s, whose file system is mounted noexec: set GOTMPDIR or TMPDIR to another folder", name, filepath.Dir(p.temp))
	}
	p.args = append([]string{out}, args...)
	return p, nil
}
