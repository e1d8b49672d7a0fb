package runtime

// Description is what a container was made from, as far as its engine can still
// tell. It is what a record is made anew from when the database is lost.
type Description struct {
	// ContainerSpec has only the environment and the healthcheck that are not the
	// image's, and neither limits nor what was loosened.
	ContainerSpec
	// Image is what the container was created from.
	Image Image
	// ImageName is a reference by which the image is found; its id when it has no
	// name any more.
	ImageName string
}
