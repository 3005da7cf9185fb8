package main

import (
	"fmt"
	"os"
	"os/exec"
)

// mountSmall mounts a file system of four pages at dir.
func mountSmall(dir string) error {
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=16k", "chaos", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mounting a small disk: %w: %s", err, out)
	}
	return nil
}

func unmount(dir string) { exec.Command("umount", "--lazy", dir).Run() }

// canFill returns why this process cannot mount a disk to fill, or nil.
func canFill() error {
	dir, err := os.MkdirTemp("", "chaos-disk-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := mountSmall(dir); err != nil {
		return err
	}
	unmount(dir)
	return nil
}
