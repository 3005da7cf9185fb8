package files

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// CheckFolder returns an error if a folder is not safe for this user's files. A folder is
// unsafe if another user owns it and others can write into it, or if another user made it in
// a folder that everybody can write into. Those users could replace files that are written
// there, and forge files that are read. A folder of root with the sticky bit, such as /tmp,
// is safe.
func CheckFolder(dir string) error {
	folder, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	return checkFolder(dir, folder)
}

// checkFolder does what CheckFolder does, for a folder that is open. dir is its name.
func checkFolder(dir string, folder *os.Root) error {
	if entry, err := os.Lstat(dir); err != nil {
		return err
	} else if entry.Mode()&fs.ModeSymlink != 0 && !isOwnOrRoots(entry) {
		return fmt.Errorf("%s is a symbolic link of user %d: want one of this process's user, %d, or of root", dir, owner(entry), os.Geteuid())
	}
	info, err := folder.Stat(".")
	if err != nil {
		return err
	}
	by, mode := owner(info), info.Mode()
	ownGroup := by == 0 && isOwnGroup(info)
	switch {
	case by == os.Geteuid(), by == 0 && mode&fs.ModeSticky != 0:
		return nil
	case mode&0o002 != 0, mode&0o020 != 0 && !ownGroup:
		return fmt.Errorf("%s belongs to user %d and has mode %v: users other than %d, this process's user, can write into it", dir, by, mode, os.Geteuid())
	case by != 0 && IsShared(filepath.Join(dir, "..")):
		return fmt.Errorf("%s belongs to user %d, who created it in a folder that all users can write into: want one of this process's user, %d", dir, by, os.Geteuid())
	}
	return nil
}

// IsShared reports whether dir is an existing folder in which everybody can create files, such as
// /tmp. Programs should create their own folder in it with [MakePrivate].
func IsShared(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && info.Mode()&0o002 != 0 && info.Mode()&fs.ModeSticky != 0
}

// MakePrivate makes a folder into which only this user can write. If dir exists, it must be
// such a folder, and not a symbolic link.
func MakePrivate(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || owner(info) != os.Geteuid() || info.Mode()&0o022 != 0 {
		return fmt.Errorf("%s has mode %v and belongs to user %d: want a folder that only user %d can write into", dir, info.Mode(), owner(info), os.Geteuid())
	}
	return nil
}

func owner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

func isOwnOrRoots(info fs.FileInfo) bool { return owner(info) == os.Geteuid() || owner(info) == 0 }

// isOwnGroup reports whether the group of the file that info describes is a group of this
// process.
func isOwnGroup(info fs.FileInfo) bool {
	gid := int(info.Sys().(*syscall.Stat_t).Gid)
	groups, _ := os.Getgroups() // after an error, only the effective group is known
	return gid == os.Getegid() || slices.Contains(groups, gid)
}
