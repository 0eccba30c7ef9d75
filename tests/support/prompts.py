"""Beginnings of texts that the demo model was not trained on: it read chapters of the King James Bible only."""

PROMPTS = (
    "And it came to pass in the days of the great winter, that the keeper of the lamp went up to the mountain",
    "The harbour master counted the ships twice, and wrote in his book that one of them had no name",
    "When the people of the valley heard the sound of the water, they gathered their children and their flocks",
    "A letter arrived from the city with seven seals, and nobody in the house dared to open it before the evening",
    "Now there was a certain weaver who had three daughters, and the eldest said unto him, Father, give me the loom",
    "In the spring the engineers returned to the bridge and measured every stone of it from the river to the road",
    "Thou shalt not leave thy tools in the rain, said the carpenter to his servants, for iron remembereth every drop",
    "The library kept its oldest maps in a cellar, rolled in oiled cloth, with the names of the makers sewn inside",
    "Behold, the merchants came from the east with salt and copper, and they asked for the price of the field",
    "She walked along the wall of the garden until the sun was low, thinking of what the doctor had told her brother",
)
