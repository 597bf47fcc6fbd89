"""How a run is started and carried out; knows no Textual."""
