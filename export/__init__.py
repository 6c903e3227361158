"""The program `rowcast-export`: turns a checkpoint and its model into a bundle."""
