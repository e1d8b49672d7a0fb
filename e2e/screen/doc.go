// Package screen tests what agbox shows on a terminal: it runs the real binary in tmux, on
// terminals of several widths, and compares the screen with pictures in testdata. The
// answers are recorded ones, so that the pictures are always the same.
package screen
