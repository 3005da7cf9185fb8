// Package files writes whole files and reads regular ones.
//
// [Write] is atomic: a file has either its old or its whole new content, even if the process ends during
// the write or another process reads meanwhile. Paths may come from the environment or a flag, so they may
// lead into folders that other users made. Nothing is written through another user's symbolic link, nor into
// another user's folder.
//
// [Open] and [Read] open only regular files. Anything may lie at a path: the open of a named pipe waits
// until a writer comes, and a device such as /dev/zero has no end. A program that reads a stream once, such
// as standard input, does not need them.
package files
